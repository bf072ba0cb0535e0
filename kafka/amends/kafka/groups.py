"""What the broker says of a consumer group, to one who is no member of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._acl import AclOperation

from amends.kafka.errors import AccessRefused, KafkaFault, ReadTimedOut
from amends.kafka.handles import AdminClient
from amends.kafka.options import common_options
from amends.kafka.options import logger as client_logger
from amends.kafka.owned import PASSING
from amends.kafka.permission import HOW, HOW_TO_CHANGE_ENGINE, NO_RIGHT, no_right
from amends.kafka.rights import Operation
from amends.kafka.settings import KafkaSettings

REQUEST_S = 10
SEEN_WITHIN_S = 3.0
EMPTY_WITHIN_S = 30.0
"""A member that was killed is one until its session ends."""
LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group as it is now. `assignor`: how its partitions are shared out, empty if it has no members or is at it."""

    members: int
    assignor: str


def group_seen(settings: KafkaSettings, group: str, deadline_s: float = SEEN_WITHIN_S) -> GroupSeen:
    """Return what a group is; without members if there is none. A cluster that has had no group tells none for a while.

    Raises:
        ReadTimedOut: the broker did not answer.
        KafkaFault: it doesn't tell.
    """
    failed = f"group {group} can't be looked at"
    admin = AdminClient(common_options(settings), logger=client_logger)
    try:
        asked = admin.describe_consumer_groups([group], request_timeout=deadline_s)
        found = asked[group].result(deadline_s)
    except TimeoutError as late:
        raise ReadTimedOut(f"{failed}: no answer within {deadline_s:g} s") from late
    except KafkaException as error:
        cause = error.args[0]
        away = cause.retriable() or cause.code() in PASSING
        raise (ReadTimedOut if away else KafkaFault)(f"{failed}: {cause.str()}") from error
    return GroupSeen(len(found.members), found.partition_assignor if found.members else "")


def require_membership(settings: KafkaSettings, group: str, deadline_s: float = SEEN_WITHIN_S) -> None:
    """Return unless the broker says that this client may not be a member of a group; it may not tell.

    Raises AccessRefused.
    """
    admin = AdminClient(common_options(settings), logger=client_logger)
    try:
        asked = admin.describe_consumer_groups([group], request_timeout=deadline_s, include_authorized_operations=True)
        told = asked[group].result(deadline_s).authorized_operations
    except TimeoutError:
        return
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() in NO_RIGHT:
            raise no_right(f"group {group}: {Operation.READ}", cause) from error
        return
    if told and AclOperation.READ not in told:
        raise AccessRefused(f"group {group}: {Operation.READ}: this client has not the right. {HOW}")


def forget_group(settings: KafkaSettings, group: str, within_s: float = EMPTY_WITHIN_S) -> None:
    """Delete a group with its committed offsets; one that is not there is forgotten. Asked again while it has members
    or the brokers are away, for `within_s`.

    Raises:
        ReadTimedOut: the brokers did not do it in time.
        AccessRefused: this client may not delete it.
        KafkaFault: it still has members.
    """
    admin = AdminClient(common_options(settings), logger=client_logger)
    end = time.monotonic() + within_s
    while True:
        left_s = max(0.1, end - time.monotonic())
        try:
            admin.delete_consumer_groups([group], request_timeout=min(left_s, REQUEST_S))[group].result(left_s)
            return
        except TimeoutError as late:
            raise ReadTimedOut(f"group {group} can't be deleted: no answer within {within_s:g} s") from late
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            if cause.code() in NO_RIGHT:
                raise no_right(f"group {group}: Delete", cause, HOW_TO_CHANGE_ENGINE) from error
            passes = cause.retriable() or cause.code() in PASSING
            if not passes and cause.code() != KafkaError.NON_EMPTY_GROUP:
                raise KafkaFault(f"the offsets of group {group} can't be forgotten: {cause.str()}") from error
            if time.monotonic() >= end:
                words = f"the offsets of group {group} can't be forgotten: {cause.str()}"
                raise (ReadTimedOut if passes else KafkaFault)(words) from error
        time.sleep(LOOK_AGAIN_S)
