"""What the cases share: the shop, empty, and a ledger with the real fold behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cases.shop import AFTER, AFTER_ASYNC, WORLD, ObservedLedger
from tests.core.folded import Folded

from amends.producers.outside import use
from amends.producers.runtime import Runtime
from amends.producers.settings import ProducerSettings


@pytest.fixture
def folded() -> Iterator[Folded]:
    for kept in (WORLD, AFTER, AFTER_ASYNC):
        kept.clear()
    ledger = ObservedLedger()
    runtime = Runtime(ProducerSettings(standing_within_ms=500, owed_within_ms=500, confirm_within_ms=40), ledger)
    before = use(runtime)
    try:
        yield Folded(runtime, ledger)
    finally:
        use(before)
        runtime.close()
