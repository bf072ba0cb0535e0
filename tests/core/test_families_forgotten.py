"""Children and requests that are forgotten, folded again, repeated, or begun long after they were announced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.families import BOOK, PAY, SHIP, TOPICS, Families
from tests.core.test_families import GRACE_MS, TERMS, family, time_passes

from amends.processors.asking import ANNOUNCED_MAX, CLOCKS_MS
from amends.processors.memory import StoredRecord
from amends.processors.partition import Partition
from amends.processors.reading import ORIGINAL_OFFSET_HEADER
from amends.processors.terms import Terms
from amends.schemas.codec import encode
from amends.schemas.commands import Phase
from amends.schemas.facts import Decision, Party, Resolution, WorkflowEvent, WorkflowStatus
from amends.schemas.family import CHILD_STARTED_OFFSET

SHORT_MS = CLOCKS_MS // 2
"""A grace so short that who looks for a child on the ledger meets what was forgotten before."""
LONG_MS = 3 * CLOCKS_MS
"""A grace so long that who does so does not meet the life that refused the child."""


def born_turned_and_forgotten() -> Families:
    """A child that began when its parent had asked for its undoing and closed; all of that is forgotten."""
    made = Families(Terms(grace_ms=SHORT_MS))
    made.start("p")
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle()
    made.start("d", parent="p", announced=announced)
    made.settle()
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")
    time_passes(made, SHORT_MS + 1)
    assert made.held("p") is made.held("d") is None
    return made


def shipped(made: Families) -> int:
    """Have `d` do its work as the child of `p`; return where it began."""
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    made.succeeded("d")
    made.settle()
    return made.starts["d"]


def test_a_repeated_start_of_a_forgotten_child_does_not_hide_it_from_its_parent() -> None:
    """Seen by the simulation (seed 301332): the repeat began an instance without steps, and that answered."""
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    assert made.held("d") is None
    made.add(made.facts("d")[0])
    made.settle()
    made.failed("p")
    made.settle()
    assert made.undone == ["pay", "ship", "book"]
    assert made.phase("p") == "COMPENSATED"


def test_a_child_begun_long_after_it_was_announced_is_turned() -> None:
    """Seen by the simulation (seed 999): what its parent asked meanwhile may be forgotten."""
    made = Families(TERMS)
    made.start("p")
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle()
    time_passes(made, GRACE_MS + 1)
    asked = made.start("d", parent="p", announced=announced)
    made.settle()
    echo = made.echo("d")
    assert (echo.phase.value, echo.answers_offset) == ("COMPENSATED", asked)
    made.did("d", "ship", SHIP)  # an agent that did not look
    made.settle()
    assert (made.undone, made.phase("d")) == (["ship"], "COMPENSATED")


def test_a_child_resumed_long_after_that_was_announced_is_turned() -> None:
    made = Families(TERMS)
    made.start("p")
    made.child("p", "d")
    made.did("d", "ship", SHIP)
    begun = made.starts["d"]
    made.said("p", WorkflowStatus.SAVEPOINT, savepoint="s")
    second = made.announce("p", "d")
    made.said("p", WorkflowStatus.ROLLBACK_REQUESTED, savepoint="s")
    made.settle()
    time_passes(made, GRACE_MS + 1)
    assert made.phase("d") == "RUNNING"
    made.start("d", parent="p", announced=second, resumes=True)
    made.starts["d"] = begun
    made.settle()
    assert (made.phase("d"), made.undone) == ("COMPENSATED", ["ship"])


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_resume_that_is_redriven_behind_a_later_one_turns_nothing(is_asked: bool) -> None:
    """Found by review: nobody could read it at the time; written anew, it was late, or met what its parent had asked
    of it, and turned the child that another process went on with."""
    made = Families(TERMS)
    made.start("p")
    made.child("p", "d")
    begun = made.starts["d"]
    made.did("d", "ship", SHIP)
    made.settle()
    made.said("p", WorkflowStatus.SAVEPOINT, savepoint="s")
    unread = made.announce("p", "d")
    if is_asked:
        made.said("p", WorkflowStatus.ROLLBACK_REQUESTED, savepoint="s")
        made.settle()
    else:
        time_passes(made, GRACE_MS // 2 + 1)
    last = made.announce("p", "d", epoch=int(is_asked))
    made.start("d", parent="p", announced=last, resumes=True)
    made.settle()
    resume = made.facts("d")[-1]
    assert isinstance(resume, WorkflowEvent)
    again = replace(
        resume,
        attributes={**resume.attributes, CHILD_STARTED_OFFSET: str(unread)},
        child_started_at_ms=made.broker.read(TOPICS.ledger, made.partition_of("p"), unread, 1)[0].appended_at_ms,
    )
    made.broker.append(TOPICS.ledger, key=b"d", value=encode(again), headers=[(ORIGINAL_OFFSET_HEADER, b"7")])
    made.settle()
    assert (made.phase("d"), made.undone) == ("RUNNING", [])
    held = made.held("d")
    assert held is not None
    assert held.header.started_offset == begun
    made.said("p", WorkflowStatus.FAILED, epoch=int(is_asked))
    made.settle()
    assert (made.phase("p"), made.phase("d"), made.undone) == ("COMPENSATED", "COMPENSATED", ["ship"])


def test_a_repeat_of_a_resume_that_is_remembered_no_more_turns_nothing() -> None:
    made = Families(TERMS)
    made.start("p")
    made.child("p", "d")
    for _ in range(ANNOUNCED_MAX + 1):
        made.start("d", parent="p", announced=made.announce("p", "d"), resumes=True)
    made.settle()
    time_passes(made, GRACE_MS + 1)
    repeated = made.facts("d")[1]
    made.add(repeated)
    made.settle()
    held = made.held("d")
    assert held is not None
    assert held.header.family is not None
    assert made.phase("d") == "RUNNING"
    assert list(held.header.family.announced) == sorted(held.header.family.announced)


def test_a_repeat_of_the_start_of_a_child_that_lives_long_turns_nothing() -> None:
    made = Families(TERMS)
    made.start("p")
    made.child("p", "d")
    made.settle()
    time_passes(made, GRACE_MS + 1)
    made.add(made.facts("d")[0])
    made.settle()
    assert made.phase("d") == "RUNNING"


def test_a_repeated_start_of_a_forgotten_child_does_not_name_the_next_one() -> None:
    """Seen by the simulation (seed 154): the second child of the id answered for both."""
    made, _ = family()
    time_passes(made, GRACE_MS + 1)
    second = made.announce("p", "d")
    made.start("d", parent="p", announced=second)
    made.add(made.facts("d")[0])
    made.did("d", "pack", SHIP)
    made.settle()
    made.failed("p")
    made.settle()
    assert made.undone == ["pack", "pay", "ship", "book"]
    assert made.phase("p") == "COMPENSATED"


def test_a_child_born_turned_is_turned_when_a_late_fact_has_it_folded_again() -> None:
    made = born_turned_and_forgotten()
    made.did("d", "ship", SHIP)
    made.settle()
    assert (made.undone, made.phase("d")) == (["ship"], "COMPENSATED")


def test_a_new_life_of_a_parent_wakes_no_child_of_the_one_before() -> None:
    """Seen by the simulation (seed 301479): looked for on the ledger, the child of the first life, of which nothing was
    left, came up RUNNING, and the second life's child resumed it."""
    made = born_turned_and_forgotten()
    made.start("p")
    made.did("p", "book", BOOK)
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle()
    assert made.held("d") is None
    made.start("d", parent="p", announced=announced, resumes=True)
    made.did("d", "ship", SHIP)
    made.settle()
    assert made.undone == ["book", "ship"]
    assert (made.phase("p"), made.phase("d")) == ("COMPENSATED", "COMPENSATED")


def test_a_forgotten_child_that_is_asked_again_answers_as_it_was_closed() -> None:
    """Seen by the simulation (seed 402398): asked again by a zombie, it was taken for one that never began, and its
    parent, closed with a loss, was told that all was undone."""
    made, _ = family()
    made.failing.add("ship")
    made.failed("p")
    made.settle()
    made.add(
        Resolution("d", Decision.ACCEPT_LOSS, Party.PERSON, "ann", step_id="ship", workflow_offset=made.starts["d"])
    )
    made.settle()
    request = made.requests("d")[-1]
    time_passes(made, GRACE_MS + 1)
    assert made.held("p") is made.held("d") is None
    made.add(request)
    made.settle()
    assert made.answers("p")[-1] == "CLOSED_WITH_LOSS"
    assert made.held("p") is made.held("d") is None, "their grace is over, as it was"


def test_a_start_that_was_refused_hides_no_child_that_began_soon_after_it() -> None:
    """Found by review: read from where the parent announced the child, the STARTED that an earlier life had refused
    began an instance, and the child's own start resumed that."""
    made = Families(TERMS)
    made.start("p")
    made.child("p", "d")
    made.succeeded("d")
    made.settle()
    made.now_ms += GRACE_MS - 1_000
    made.child("p", "d")  # within the grace: refused
    made.settle()
    made.now_ms += 2_000
    begun = shipped(made)
    time_passes(made, GRACE_MS + 1)
    assert made.held("d") is None
    made.said("d", WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann", reason="wrong")
    made.settle()
    assert (made.undone, made.phase("d")) == (["ship"], "COMPENSATED")
    held = made.held("d")
    assert held is not None
    assert held.header.started_offset == begun


def test_a_start_that_was_refused_hides_no_child_that_is_looked_for() -> None:
    """Found by review: the life that refused it stands before what is read, so it seemed to begin an instance, and the
    child's own start to resume that; the parent was told COMPENSATED of a child without steps."""
    made = Families(Terms(grace_ms=LONG_MS))
    made.start("d")  # a workflow of its own
    made.succeeded("d")
    made.start("p")
    made.settle()
    made.now_ms += LONG_MS - 20_000
    made.start("d", parent="p", announced=made.announce("p", "d"))  # refused: told once more
    made.add(made.facts("d")[-1])
    made.settle()
    made.now_ms += 40_000
    begun = shipped(made)
    time_passes(made, LONG_MS + 1)
    time_passes(made, LONG_MS + 1)
    assert made.held("d") is None
    made.failed("p")
    made.settle()
    assert (made.undone, made.phase("p")) == (["ship"], "COMPENSATED")
    held = made.held("d")
    assert held is not None
    assert (held.header.started_offset, held.header.phase) == (begun, Phase.COMPENSATED)


def test_forgotten_children_are_folded_again_together() -> None:
    """Found by review: each was read for alone once more from where it was announced, a hundred passes for a hundred,
    and whoever was wanted meanwhile waited for all of them."""
    made = Families(TERMS)
    made.start("p")
    children = [id for id in (f"child-{n}" for n in range(40)) if made.partition_of(id) == 1]
    for child in children:
        made.child("p", child)
        made.did(child, f"ship {child}", SHIP)
        made.succeeded(child)
    made.settle()
    time_passes(made, GRACE_MS + 1)
    for child in children:
        made.said(child, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="ann", reason="wrong")
    ledger = made.broker.read(TOPICS.ledger, 1)
    partition = Partition(1, TERMS)
    for record in ledger:
        partition.fold(record)
        partition.outputs(record.appended_at_ms)
    assert all(partition.workflow(child) is None for child in children)
    assert _read(partition, ledger) == 2
    assert [held.header.phase.value for child in children if (held := partition.workflow(child))] == [
        "TURNED" for _ in children
    ]


def folded(ledger: list[StoredRecord], *, reads_at: int, dies_at: int = -1) -> Partition:
    """Return what is made of a ledger partition whose stretches are read once all up to `reads_at` is folded, by one
    that takes over from another at `dies_at`."""
    partition = Partition(1, TERMS)
    kept: list[tuple[bytes, bytes | None]] = []
    for record in ledger:
        partition.fold(record)
        kept += partition.changes()
        if record.offset == dies_at:
            partition = Partition(1, TERMS)
            for key, value in kept:
                partition.restore(key, value)
            partition.restored(record.offset)
        if record.offset >= reads_at:
            _read(partition, ledger)
            kept += partition.changes()
    _read(partition, ledger)
    return partition


def _read(partition: Partition, ledger: list[StoredRecord]) -> int:
    """Read the ledger for all that are to be folded again; return in how many passes."""
    passes = 0
    while (stretch := partition.refolding()) is not None:
        stretch.located(0)
        stretch.begins_at(0)
        for record in ledger[stretch.from_offset : stretch.to_offset + 1]:
            stretch.take(record)
        partition.refolded(stretch)
        passes += 1
    return passes


@pytest.mark.parametrize("begins", [False, True])
def test_a_child_that_begins_while_it_is_looked_for_is_turned_where_it_began(begins: bool) -> None:
    """Seen by the simulation (seeds 1001156, 1003162, 1025103): asked for under its second announcement, it was resumed
    under that while the ledger was read for it, and was turned when that was read; what it did meanwhile counted."""
    made = Families(TERMS)
    made.start("p")
    first = made.announce("p", "d")
    if not begins:
        made.start("d", parent="p", announced=first)
        made.did("d", "ship", SHIP)
    second = made.announce("p", "d")
    made.failed("p")
    made.settle(only=lambda partition: partition == made.partition_of("p"))
    for step_id in ("pay", "book"):
        made.start("d", parent="p", announced=first if begins and step_id == "pay" else second, resumes=True)
        made.did("d", step_id, PAY)
        made.failed("d")
    ledger = made.broker.read(TOPICS.ledger, made.partition_of("d"))
    at_once = folded(ledger, reads_at=0)
    told = at_once.workflow("d")
    assert told is not None
    assert told.header.epoch == 1
    for reads_at in range(len(ledger)):
        for dies_at in range(-1, len(ledger)):
            held = folded(ledger, reads_at=reads_at, dies_at=dies_at).workflow("d")
            assert held is not None
            assert (held.header, held.steps) == (told.header, told.steps), (reads_at, dies_at)


def test_a_start_that_comes_again_asks_nothing_twice() -> None:
    """Seen by the simulation (seed 441049): each STARTED of a child added the request that it was born under."""
    made = Families(TERMS)
    made.start("p")
    announced = made.announce("p", "d")
    made.failed("p")
    made.settle()
    made.start("d", parent="p", announced=announced)
    made.settle()
    begun = made.facts("d")[-1]
    for again in (made.requests("d")[-1], begun):
        made.add(again)
        made.settle()
    held = made.held("d")
    assert held is not None
    assert held.header.family is not None
    assert [ask.announced for ask in held.header.family.asks] == [announced]


@pytest.mark.parametrize("second_life", [False, True])
def test_a_request_for_a_child_that_is_held_waits_for_none_that_is_looked_for(second_life: bool) -> None:
    """Seen by the simulation (seeds 1188720, 1201662, 1202778, 1222522): it waited, the child's own facts did not, and
    behind those it was taken for known: the child was turned by a later repeat, or never."""
    made = Families(TERMS)
    made.start("p")
    announced = made.announce("p", "d")
    made.start("d", parent="p", announced=announced)
    made.did("d", "ship", SHIP)
    never_begun = made.announce("p", "d")
    made.failed("p")
    made.settle(only=lambda partition: partition == made.partition_of("p"))
    request = made.requests("d")[-1]
    assert request.attributes[CHILD_STARTED_OFFSET] == str(never_begun)
    made.add(replace(request, attributes={**request.attributes, CHILD_STARTED_OFFSET: str(announced)}))
    made.did("d", "pay", PAY)
    if second_life:
        made.start("d", parent="p", announced=never_begun, resumes=True)
    ledger = made.broker.read(TOPICS.ledger, made.partition_of("d"))
    told = folded(ledger, reads_at=0).workflow("d")
    assert told is not None
    assert told.header.phase is Phase.TURNED
    for reads_at in range(len(ledger)):
        for dies_at in range(-1, len(ledger)):
            held = folded(ledger, reads_at=reads_at, dies_at=dies_at).workflow("d")
            assert held is not None
            assert (held.header, held.steps) == (told.header, told.steps), (reads_at, dies_at)
