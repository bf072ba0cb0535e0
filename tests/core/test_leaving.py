"""Whether a changelog was left by its engine, told from its last records."""

from __future__ import annotations

import pytest

from amends.kafka.records import Record
from amends.processors.faust_changelog import LEFT_KEY, SEAL_KEY, Mark, Rank
from amends.processors.leaving import tells_left
from amends.schemas.topics import FAUST, TRANSACTIONS


def record(key: bytes, value: bytes | None, rank: Rank | None = None) -> Record:
    headers = tuple(Mark(rank, 1).headers()) if rank is not None else ()
    return Record("changelog", 0, 0, 1_000, key, value, headers)


LEFT = record(LEFT_KEY, b"transactions")
OLD = [record(b"w", b"old", Rank(0, 9)), record(SEAL_KEY, b"", Rank(0, 9))]
BEGUN = [record(LEFT_KEY, None, Rank(1, 3)), record(b"w", b"new", Rank(1, 3))]
SEALED = record(SEAL_KEY, b"", Rank(1, 3))


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ([*OLD], False),
        ([*OLD, LEFT], True),
        ([*OLD, LEFT, *BEGUN], True),
        ([*OLD, LEFT, *BEGUN, SEALED], False),
        ([*OLD, LEFT, *BEGUN, SEALED, LEFT], True),
        ([*OLD, LEFT, *BEGUN, *OLD], True),
        ([BEGUN[1]], None),
        ([*BEGUN], True),
        ([*BEGUN, SEALED], False),
        ([BEGUN[1], SEALED], False),
        ([*BEGUN, record(SEAL_KEY, b"", Rank(2, 0))], False),
        ([record(b"w", b"of another program")], None),
        ([], None),
    ],
    ids=[
        "a seal", "left", "left, and a first checkpoint begun", "and sealed", "and left again",
        "a late seal of the era before", "the middle of a checkpoint", "the record is compacted away",
        "and was sealed", "the end of a sealed checkpoint", "sealed by the one after", "no mark", "nothing",
    ],
)  # fmt: skip
def test_under_faust_the_record_is_dropped_once_that_is_sealed(tail: list[Record], left: bool | None) -> None:
    assert tells_left(tail, FAUST, is_all=False) is left
    assert tells_left(tail, FAUST, is_all=True) is bool(left), "where there is no more, nothing said so"


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ([record(b"w", b"old")], False),
        ([record(b"w", b"old"), LEFT], True),
        ([LEFT, record(LEFT_KEY, None)], False),
        ([LEFT, record(b"w", b"new")], False),
        ([], None),
    ],
)
def test_under_transactions_the_last_record_tells(tail: list[Record], left: bool | None) -> None:
    assert tells_left(tail, TRANSACTIONS, is_all=False) is left
