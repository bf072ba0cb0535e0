"""Whether this client has the rights of its part. Brokers tell whom they know what he may do, without his trying it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation

from amends.kafka.errors import AccessRefused
from amends.kafka.rights import Operation, Resource, Right

log = logging.getLogger(__name__)

ANSWER_S = 5.0

NO_RIGHT = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip

HOW = "`amends acls` prints what each part needs, as commands for kafka-acls"
HOW_TO_CHANGE_ENGINE = (
    "`amends acls --refold` prints what the one start that changes the engine needs, as commands for kafka-acls"
)

_NAMED = {
    AclOperation.READ: Operation.READ,
    AclOperation.WRITE: Operation.WRITE,
    AclOperation.CREATE: Operation.CREATE,
    AclOperation.DELETE: Operation.DELETE,
    AclOperation.DESCRIBE: Operation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


def no_right(what: str, cause: KafkaError, how: str = HOW) -> AccessRefused:
    """Return the error for an answer of `NO_RIGHT`."""
    return AccessRefused(f"{what}: {cause.str()}: this client has not the right. {how}")


def require_rights(admin: AdminClient, rights: Sequence[Right], how: str = HOW) -> None:
    """Return if the brokers grant all of `rights` that are on topics.

    What they do not tell is not judged. Neither are groups, of which a cluster that has had none tells nothing for
    seconds, nor transactional ids, of which none tells anything: who lacks those hears it when he first uses them,
    which is at once.

    Raises:
        AccessRefused: some are missing; all of them are named.
    """
    topics = [right for right in rights if right.resource is Resource.TOPIC]
    told: Mapping[str, Future[Any]] = admin.describe_topics(
        TopicCollection([right.name for right in topics]), include_authorized_operations=True, request_timeout=ANSWER_S
    )
    missing = [line for right in topics if (line := _missing(right, _granted(told[right.name])))]
    if missing:
        lines = "\n".join(f"- {line}" for line in missing)
        raise AccessRefused(f"this client has not the rights of its part on Kafka:\n{lines}\n{how}")


def _missing(right: Right, granted: frozenset[Operation] | None) -> str:
    if granted is None:
        log.info("rights on the topic %s are not judged: the broker does not tell them", right.name)
        return ""
    lacking = [operation for operation in right.operations if operation not in granted]
    return f"topic {right.name}: {' and '.join(lacking)}" if lacking else ""


def _granted(future: Future[Any]) -> frozenset[Operation] | None:
    """Return what is granted, None where that is not told. Of a topic that is not there nothing is lacking: whether it
    should be there is for the check of topics."""
    try:
        told: Iterable[AclOperation] | None = future.result(2 * ANSWER_S).authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return frozenset(_NAMED.values())
        return frozenset() if code in NO_RIGHT else None
    except TimeoutError:
        return None
    return frozenset(_NAMED[operation] for operation in told if operation in _NAMED) if told else None
