"""Taking away what one run made on a Kafka that stays: topics and consumer groups. Nothing else deletes any."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from amends.kafka.handles import AdminClient
from amends.kafka.options import common_options
from amends.kafka.options import logger as client_logger
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import wanted_topics
from amends.schemas.topics import FAUST

REQUEST_S = 10
LOOK_AGAIN_S = 0.5

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})


def delete_topics(settings: KafkaSettings, *, deadline_ms: int = 10_000) -> list[str]:
    """Delete all topics of these settings, with what they hold; return those that may still be there at the deadline.

    Never raises for what the broker says.
    """
    names = [topic.name for topic in wanted_topics(settings, FAUST)]  # whichever engines ran
    admin, end = _admin(settings), time.monotonic() + deadline_ms / 1000
    return _refused(names, lambda left: admin.delete_topics(left, operation_timeout=REQUEST_S), end)


def delete_groups(settings: KafkaSettings, beginning: str, *, deadline_ms: int = 10_000) -> list[str]:
    """Delete the consumer groups whose name begins with `beginning`; return those that may still be there. One that has
    a member is tried again until the deadline: who was killed is a member until his session ends.

    Never raises for what the broker says.
    """
    if not beginning:
        raise ValueError("`beginning` is empty: that would be every group of the cluster")
    admin, end = _admin(settings), time.monotonic() + deadline_ms / 1000
    try:
        listed = admin.list_consumer_groups(request_timeout=REQUEST_S).result(deadline_ms / 1000)
    except (KafkaException, TimeoutError):
        return [f"{beginning}*"]
    left = [group.group_id for group in listed.valid if group.group_id.startswith(beginning)]
    while True:
        left = _refused(left, lambda groups: admin.delete_consumer_groups(groups, request_timeout=REQUEST_S), end)
        if not left or time.monotonic() >= end:
            return sorted(left)
        time.sleep(LOOK_AGAIN_S)


def _admin(settings: KafkaSettings) -> AdminClient:
    return AdminClient(common_options(settings), logger=client_logger)


def _refused(names: list[str], delete: Callable[[list[str]], Mapping[str, Future[Any]]], end_s: float) -> list[str]:
    refused: list[str] = []
    for name, future in (delete(names) if names else {}).items():
        try:
            future.result(max(0.0, end_s - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in _GONE:
                refused.append(name)
        except TimeoutError:
            refused.append(name)
    return refused
