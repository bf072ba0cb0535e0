"""Which records of the Faust engine's changelog count, whoever wrote them and wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends.processors.faust_changelog import SEAL_KEY, Mark, Rank, Restored, Restoring, mark_of

KEYS = (b"a", b"b", b"c")
Record = tuple[bytes, bytes | None, Mark]


def mark(folded_to: int, *, era: int = 0, writer: int = 1) -> Mark:
    return Mark(Rank(era, folded_to), writer)


def seal(folded_to: int, *, era: int = 0, writer: int = 1) -> Record:
    return (SEAL_KEY, b"", mark(folded_to, era=era, writer=writer))


def restored(*log: Record) -> Restored:
    restoring = Restoring()
    for record in log:
        restoring.take(*record)
    return restoring.ended()


def test_a_mark_is_read_as_it_was_written() -> None:
    written = mark(7, era=2, writer=2**62 - 1)
    assert mark_of([("other", b"x"), *written.headers()]) == written


@pytest.mark.parametrize("headers", [[], [("amends-mark", b"short")]])
def test_a_record_of_another_program_is_refused(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ValueError, match="mark"):
        mark_of(headers)


def test_nothing_counts_before_a_seal_stands() -> None:
    found = restored((b"a", b"1", mark(3)))
    assert found.state == {}
    assert found.sealed is None
    assert found.keys == {b"a"}


def test_records_of_a_checkpoint_that_was_not_finished_do_not_count() -> None:
    assert restored((b"a", b"1", mark(3)), seal(3), (b"a", b"2", mark(5))).state == {b"a": b"1"}


def test_they_count_once_a_later_seal_covers_them() -> None:
    log = [(b"a", b"1", mark(3)), seal(3), (b"a", b"2", mark(5)), (b"b", b"1", mark(8)), seal(8)]
    assert restored(*log).state == {b"a": b"2", b"b": b"1"}


def test_what_was_not_finished_is_known_with_the_value_that_counts() -> None:
    log = [(b"a", b"1", mark(3)), seal(3), (b"a", b"2", mark(5)), (b"b", b"1", mark(4)), (b"b", b"2", mark(5))]
    assert restored(*log).contested == {b"a": b"1", b"b": None}
    assert restored(*log, seal(5)).contested == {}
    assert restored(*log, seal(3, era=1)).contested == {}, "a new era outranks it"


def test_half_of_a_state_that_no_fact_changed_is_gone_once_the_next_owner_has_written_over_it() -> None:
    """A workflow that was folded again is written, half of it, by one who dies; the next owner knows nothing of it."""
    log = [(b"parked", b"w", mark(3)), seal(3), (b"header", b"w", mark(5))]
    over = [(key, value, mark(8, writer=2)) for key, value in restored(*log).contested.items()]
    assert restored(*log, seal(8, writer=2)).state == {b"parked": b"w", b"header": b"w"}, "without it, half counts"
    assert restored(*log, *over, seal(8, writer=2)).state == {b"parked": b"w"}


def test_what_a_process_that_was_replaced_writes_late_and_beyond_does_not_win_over_what_the_owner_wrote() -> None:
    """Both fold a workflow again. The one that sleeps was further on; its half comes once the owner is beyond, too."""
    log = [(b"w", b"parked", mark(3)), seal(3), (b"w", b"parked", mark(4, writer=2)), seal(4, writer=2)]
    late = [(b"w", b"header without steps", mark(5))]
    found = restored(*log, *late, seal(8, writer=2))
    assert found.state == {b"w": b"parked"}
    assert found.again == [(b"w", b"parked", mark(4, writer=2))]
    assert found.contested == {b"w": b"parked"}, "or the next owner's seal would have it count"
    over = [(b"w", b"parked", mark(9, writer=3)), seal(9, writer=3)]
    assert restored(*log, *late, seal(8, writer=2), *over).state == {b"w": b"parked"}


def test_a_late_record_of_a_process_that_was_replaced_does_not_win() -> None:
    log = [(b"a", b"new", mark(9)), seal(9), (b"a", b"old", mark(4, writer=2)), seal(4, writer=2)]
    assert restored(*log).state == {b"a": b"new"}
    assert restored(*log).sealed == Rank(0, 9)


def test_what_a_retry_wrote_twice_or_behind_what_came_after_it_changes_nothing() -> None:
    """Faust's producer is not idempotent."""
    log = [(b"a", b"1", mark(3)), (b"b", b"1", mark(3)), seal(3), (b"a", b"2", mark(5)), seal(5)]
    for again in log:
        assert restored(*log, again).state == restored(*log).state
        assert restored(*log, again).sealed == Rank(0, 5)
    assert restored(log[0], log[3], log[1], log[4], log[2]).state == restored(*log).state


def test_an_older_state_behind_a_tombstone_stays_dropped() -> None:
    found = restored((b"a", b"old", mark(2)), (b"a", None, mark(9)), seal(9), (b"a", b"old", mark(4, writer=2)))
    assert found.state == {}
    assert found.again == [(b"a", None, mark(9))]


def test_what_counts_and_does_not_stand_last_is_to_be_written_again_with_its_mark() -> None:
    log = [(b"a", b"new", mark(9)), seal(9), (b"a", b"old", mark(4, writer=2)), seal(4, writer=2)]
    assert restored(*log).again == [(SEAL_KEY, b"", mark(9)), (b"a", b"new", mark(9))]
    assert restored(*log, *restored(*log).again).again == []


def test_a_new_era_outranks_all_that_was_written_before() -> None:
    log = [(b"a", b"1", mark(90)), (b"z", b"1", mark(90)), seal(90), (b"a", b"2", mark(4, era=1)), seal(4, era=1)]
    assert restored(*log).state == {b"a": b"2"}
    assert restored(*log).keys == {b"a", b"z"}
    assert restored(*log, (b"y", b"1", mark(95)), seal(95)).state == {b"a": b"2"}


def test_an_era_that_was_begun_and_not_sealed_leaves_the_one_before_and_its_number_is_not_used_again() -> None:
    found = restored((b"a", b"1", mark(9)), seal(9), (b"a", b"2", mark(4, era=1)))
    assert found.state == {b"a": b"1"}
    assert found.era_max == 1


# --- any schedule of owners and zombies -------------------------------------------------------------------------------


def state_at(facts: list[bytes], offset: int) -> dict[bytes, bytes]:
    """The fold of these tests: per key how many facts there were; every fifth drops it."""
    counts: dict[bytes, int] = {}
    for key in facts[: offset + 1]:
        counts[key] = (counts.get(key, 0) + 1) % 5
    return {key: b"%d" % count for key, count in counts.items() if count}


@dataclass
class Owner:
    """A process that has taken over, and goes on whether others have since or not."""

    writer: int
    folded_to: int
    pending: list[Record] = field(default_factory=list[Record])

    def cut(self, facts: list[bytes]) -> None:
        end = len(facts) - 1
        if self.pending or end <= self.folded_to:
            return
        state, own = state_at(facts, end), mark(end, writer=self.writer)
        changed = dict.fromkeys(facts[self.folded_to + 1 :])
        self.pending = [(key, state.get(key), own) for key in changed] + [(SEAL_KEY, b"", own)]
        self.folded_to = end


actions = st.lists(
    st.one_of(
        st.tuples(st.just("fact"), st.integers(0, 2)),
        st.tuples(st.sampled_from(("cut", "write", "write", "write", "take")), st.integers(0, 1)),
        st.tuples(st.sampled_from(("rewrite", "compact")), st.just(0)),
    ),
    max_size=100,
)


def compacted(log: list[Record]) -> list[Record]:
    last = {record[0]: place for place, record in enumerate(log)}
    return [record for place, record in enumerate(log) if last[record[0]] == place]


@given(actions)
def test_any_schedule_of_owners_and_zombies_restores_the_state_of_the_highest_seal(done: list[tuple[str, int]]) -> None:
    facts: list[bytes] = []
    log: list[Record] = []
    owners = [Owner(0, -1), Owner(1, -1)]
    for number, (what, which) in enumerate(done):
        owner = owners[which % 2]
        if what == "fact":
            facts.append(KEYS[which])
        elif what == "cut":
            owner.cut(facts)
        elif what == "write" and owner.pending:
            log.append(owner.pending.pop(0))
        elif what == "take":
            sealed = restored(*log).sealed
            owners[which] = Owner(2 + number, -1 if sealed is None else sealed.folded_to)
        elif what == "rewrite":
            log.extend(restored(*log).again)
        elif what == "compact" and not restored(*log).again:
            # Compaction must not overtake the writing again, nor what an owner is about to seal.
            log = compacted(log) if not any(each.pending for each in owners) else log
        found = restored(*log)
        wanted = {} if found.sealed is None else state_at(facts, found.sealed.folded_to)
        assert found.state == wanted


# --- and what changes without a fact ----------------------------------------------------------------------------------

PARK, HEADER, STEP = b"p", b"header", b"step"
PARKED = b"parked"


@dataclass
class Folding:
    """An owner of one workflow that was forgotten: a fact PARK has it folded again, which is done at any later time,
    and then counts its facts up to there. Kept as a header and a step, which tells nothing while it is parked."""

    writer: int
    folded_to: int
    count: bytes | None = None
    """What is known of it; None: nothing, it was not named."""
    sealed: Rank | None = None
    contested: dict[bytes, bytes | None] = field(default_factory=dict[bytes, bytes | None])
    changed: bool = False
    pending: list[Record] = field(default_factory=list[Record])

    @classmethod
    def taking(cls, writer: int, log: list[Record]) -> Folding:
        found = restored(*log)
        folded_to = -1 if found.sealed is None else found.sealed.folded_to
        count = found.state.get(HEADER)
        return cls(writer, folded_to, count, found.sealed, found.contested, changed=count == PARKED)

    def fold(self, facts: list[bytes]) -> None:
        for offset in range(self.folded_to + 1, len(facts)):
            if facts[offset] == PARK and self.count is None:
                self.count, self.changed = PARKED, True
            elif self.count not in (None, PARKED):
                self.count, self.changed = b"%d" % (offset + 1), True
            self.folded_to = offset

    def refold(self) -> None:
        if self.count == PARKED:
            self.count, self.changed = b"%d" % (self.folded_to + 1), True

    def cut(self) -> bytes | None:
        """Begin a checkpoint, if there is anything to keep; return what it holds."""
        if self.pending or (not self.changed and self.sealed is not None and self.sealed.folded_to == self.folded_to):
            return None
        rank = Rank(0, self.folded_to) if self.sealed is None else self.sealed.following(self.folded_to)
        own, changes = Mark(rank, self.writer), dict(self.contested)
        if self.changed:
            changes[HEADER] = self.count
            if self.count != PARKED:
                changes[STEP] = self.count
        self.pending = [*((key, value, own) for key, value in changes.items()), (SEAL_KEY, b"", own)]
        self.sealed, self.contested, self.changed = rank, {}, False
        return self.count or b""


folding = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("fact", "park", "rewrite", "compact")), st.just(0)),
        st.tuples(st.sampled_from(("fold", "refold", "cut", "write", "keep", "take")), st.integers(0, 2)),
    ),
    min_size=20,
    max_size=120,
)


@given(folding)
def test_a_workflow_that_is_folded_again_is_never_known_by_half_nor_by_what_another_was_at(
    done: list[tuple[str, int]],
) -> None:
    play(done)


def play(done: list[tuple[str, int]]) -> None:
    """Play a schedule; what counts is always what the writer of the highest seal knew."""
    facts: list[bytes] = []
    log: list[Record] = []
    kept: dict[Mark, bytes] = {}
    owners = [Folding(number, -1) for number in range(3)]
    for number, (what, which) in enumerate(done):
        owner = owners[which]
        if what in ("fact", "park"):
            facts.append(PARK if what == "park" else b"f")
        elif what == "fold":
            owner.fold(facts)
        elif what == "refold":
            owner.refold()
        elif what == "cut" and (holds := owner.cut()) is not None:
            kept[owner.pending[-1][2]] = holds
        elif what == "write" and owner.pending:
            log.append(owner.pending.pop(0))
        elif what == "keep":
            log.extend(owner.pending)
            owner.pending.clear()
        elif what == "take":
            owners[which] = Folding.taking(3 + number, log)
        elif what == "rewrite":
            log.extend(restored(*log).again)
        elif what == "compact" and not restored(*log).again:
            # It comes a day later, when nobody lives who was replaced.
            log = compacted(log)
            owners = [Folding.taking(3 + number + 1_000 * each, log) for each in range(3)]
        restoring = Restoring()
        for record in log:
            restoring.take(*record)
        if restoring._seal is not None:
            state = restoring.ended().state
            assert state.get(HEADER, b"") == kept[restoring._seal]
            if state.get(HEADER, PARKED) != PARKED:
                assert state[STEP] == state[HEADER], "a header has its step"
