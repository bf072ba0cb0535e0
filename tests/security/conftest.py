"""The secured broker, one for the session, with topics and rights for each test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import NO_KAFKA
from tests.security.secured import PARTS, Secured, secret_of, start_secured
from tests.security.token_endpoint import TokenEndpoint

from amends.kafka.turned_away import turned_away
from amends.local.kafka_server import why_no_apache_kafka


@pytest.fixture(autouse=True)
def nothing_heard_stays() -> Iterator[None]:
    """What brokers say in these tests is no concern of the parts of others."""
    yield
    turned_away.forget()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """An Apache Kafka of our own: nobody gives us one with these listeners."""
    reason = why_no_apache_kafka()
    if reason is not None:
        pytest.skip(NO_KAFKA + reason)
    with TokenEndpoint({part: secret_of(part) for part in PARTS}) as endpoint:
        made = start_secured(tmp_path_factory.mktemp("secured"), endpoint)
        try:
            yield made
        finally:
            made.server.stop()
