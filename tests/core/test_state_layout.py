"""The state's layout: a version reads what older ones wrote, and refuses what a newer one did."""

from __future__ import annotations

import dataclasses
import json

import pytest

from amends.kafka.settings import KafkaSettings
from amends.processors import records, state
from amends.processors.restoring import StateUnreadableError, readable
from amends.processors.running import fold_of
from amends.processors.settings import ProcessorSettings
from amends.processors.timers import Silences
from amends.schemas import approvals
from amends.schemas.keys import digest

KEPT = (
    state.Header,
    state.Step,
    state.Attempt,
    state.Undo,
    state.Trouble,
    state.Turn,
    state.Savepoint,
    state.Family,
    state.Ask,
    state.Child,
    state.DataFlow,
    approvals.Approval,
)
"""What stands in the changelog, by position."""

LAYOUTS = {2: "7821d451799107a3"}
"""Of the names of all fields. A line for each layout; those of releases are never changed."""


def names(kind: type) -> list[str]:
    fields = getattr(kind, "_fields", None)
    return list(fields) if fields is not None else [field.name for field in dataclasses.fields(kind)]


def test_rows_that_changed_have_a_layout_of_their_own() -> None:
    told = "".join(f"{kind.__name__}({','.join(names(kind))})" for kind in KEPT)
    found = digest(told.encode())[:16]
    assert LAYOUTS.get(records.LAYOUT) == found, (
        f"what is kept of the state changed ({found}): raise LAYOUT in processors/records.py and add a line here, or, "
        "if no release has this layout yet, change its line; docs/upgrades.md says how processors go back"
    )


def test_state_of_a_newer_layout_is_refused_when_it_is_restored() -> None:
    newer = json.dumps([7, [], [], records.LAYOUT + 1]).encode()
    fold = fold_of(KafkaSettings(), ProcessorSettings())(3)
    with pytest.raises(StateUnreadableError, match=r"partition 3 .* newer version did.*--refold"), readable(3):
        fold.restore(records.PARTITION_KEY, newer)


@pytest.mark.parametrize("kept", [[7, [[5, 2]]], [7, [[5, 2]], [["w", "lane"]]], [7, [[5, 2]], [["w", "lane"]], 2]])
def test_state_of_every_layout_there_was_is_read(kept: list[object]) -> None:
    silences, lanes_missing = records.decode_partition(json.dumps(kept).encode())
    assert (silences.last_at_ms, silences.gaps) == (7, [(5, 2)])
    assert lanes_missing == ({("w", "lane")} if len(kept) > 2 else set())


def test_the_record_of_a_partition_says_the_layout() -> None:
    data = records.encode_partition(Silences(7, []), set())
    assert json.loads(data)[-1] == records.LAYOUT
