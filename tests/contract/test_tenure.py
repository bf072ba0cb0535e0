"""The bookkeeping every engine is built on: order, holes, and what a checkpoint may cover."""

from __future__ import annotations

import pytest
from tests.contract.tally import Tally, decode

from amends.processors.engine import LedgerHoleError
from amends.processors.memory import StoredRecord
from amends.processors.tenure import Tenure
from amends.schemas.topics import Topics


def tenure(next_offset: int = 0) -> Tenure:
    return Tenure(0, Tally(0, Topics()), next_offset)


def fact(offset: int, key: bytes = b"a") -> StoredRecord:
    return StoredRecord(Topics().ledger, 0, offset, 1_000 + offset, key, b"fact")


def test_a_fact_that_was_folded_is_skipped() -> None:
    owned = tenure()
    assert owned.take(fact(0))
    assert not owned.take(fact(0))
    assert owned.next_offset == 1


def test_a_hole_is_refused_and_says_which_facts_are_gone() -> None:
    owned = tenure(5)
    with pytest.raises(LedgerHoleError, match="offset 5 must come next but 7 does"):
        owned.take(fact(7))
    assert owned.fold.folded_to == -1


def test_a_checkpoint_waits_for_what_was_emitted_before_it() -> None:
    owned = tenure()
    owned.take(fact(0))
    [(first, _)] = owned.emissions(0, timers=False)
    cut = owned.cut()
    assert not owned.may_keep(cut)
    owned.confirm(first)
    assert owned.may_keep(cut)


def test_a_checkpoint_does_not_wait_for_what_was_emitted_after_it() -> None:
    owned = tenure()
    owned.take(fact(0))
    [(first, _)] = owned.emissions(0, timers=False)
    cut = owned.cut()
    owned.take(fact(1))
    owned.emissions(0, timers=False)
    owned.confirm(first)
    assert owned.may_keep(cut)
    assert cut.next_offset == 1


def test_what_an_aborted_checkpoint_held_is_in_the_next_one() -> None:
    owned = tenure()
    owned.take(fact(0, b"a"))
    owned.take(fact(1, b"b"))
    owned.not_kept(owned.cut())
    owned.take(fact(2, b"a"))
    cut = owned.cut()
    assert set(cut.changes) == {b"a", b"b"}
    value = cut.changes[b"a"]
    assert value is not None
    assert decode(value).count == 2
    owned.kept(cut)
    assert not owned.dirty


def test_ledger_time_never_goes_back() -> None:
    owned = tenure()
    owned.saw_time(5_000)
    owned.take(fact(0))
    assert owned.folded_time_ms == 5_000
