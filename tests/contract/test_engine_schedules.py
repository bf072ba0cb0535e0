"""Any schedule of two owners that take a partition from each other, crash and go on as zombies ends in one state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.contract.tally import Count, Tally, decode

from amends.processors.memory import MemoryBroker, MemoryEngine
from amends.schemas.topics import Topics

TOPICS = Topics()
KEYS = (b"a", b"b", b"c")
STEPS = ("fold", "send", "checkpoint", "tick", "crash", "take", "lose")
Action = tuple[str, int]  # what, and which key or which owner

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, len(KEYS) - 1)),
        st.tuples(st.sampled_from(STEPS), st.integers(0, 1)),
        # Most of the time owners work.
        st.tuples(st.sampled_from(("fold", "send", "checkpoint")), st.integers(0, 1)),
    ),
    max_size=120,
)


class Schedule:
    def __init__(self) -> None:
        self.now_ms = 0
        self.broker = MemoryBroker(1, lambda: self.now_ms)
        self.owners = [
            MemoryEngine(self.broker, TOPICS, lambda partition: Tally(partition, TOPICS), lambda: self.now_ms)
            for _ in range(2)
        ]
        self.expected: dict[bytes, Count] = {}

    def act(self, action: Action) -> None:
        what, which = action
        self.now_ms += 1
        if what == "append":
            self.append(KEYS[which])
            return
        owner = self.owners[which]
        if what == "take":
            owner.take(0)
        elif what == "crash":
            owner.crash()
        elif 0 in owner.partitions:
            step = {"fold": owner.fold_next, "send": owner.send_next, "checkpoint": owner.checkpoint}
            {**step, "tick": owner.tick, "lose": owner.lose}[what](0)

    def append(self, key: bytes) -> None:
        value = b"%d" % self.now_ms
        offset = self.broker.append(TOPICS.ledger, key=key, value=value).offset
        self.expected[key] = self.expected.get(key, Count()).with_fact(offset, 0, value)

    def state(self) -> dict[bytes, Count]:
        return {r.key or b"": decode(r.value or b"") for r in self.broker.read(TOPICS.changelog(), 0)}

    def emitted(self) -> list[tuple[bytes, Count]]:
        return [(r.key or b"", decode(r.value or b"")) for r in self.broker.read(TOPICS.workflows, 0)]


@given(actions)
def test_the_durable_state_is_always_a_state_the_ledger_had(done: list[Action]) -> None:
    schedule = Schedule()
    for action in done:
        schedule.act(action)
        committed = schedule.broker.committed("amends", TOPICS.ledger, 0) or 0
        wanted: dict[bytes, Count] = {}
        for fact in schedule.broker.read(TOPICS.ledger, 0)[:committed]:
            key = fact.key or b""
            wanted[key] = wanted.get(key, Count()).with_fact(fact.offset, 0, fact.value)
        assert schedule.state() == wanted


@given(actions)
def test_what_a_checkpoint_covers_was_emitted_before_it(done: list[Action]) -> None:
    schedule = Schedule()
    for action in done:
        schedule.act(action)
        emitted = schedule.emitted()
        for key, count in schedule.state().items():
            assert any(k == key and e.count >= count.count for k, e in emitted)


@given(actions)
def test_whoever_owns_the_partition_last_ends_in_the_ledgers_state(done: list[Action]) -> None:
    schedule = Schedule()
    for action in done:
        schedule.act(action)
    schedule.owners[0].take(0)
    schedule.owners[0].settle()
    assert schedule.state() == schedule.expected
    last = dict(schedule.emitted())
    assert {key: last[key].count for key in schedule.expected} == {k: c.count for k, c in schedule.expected.items()}
