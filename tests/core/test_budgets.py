"""Many workflows of a partition at once: what they have under way at a remote together, and who waits."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from tests.core.ledger import Ledger, contract_of

from amends.processors.breakers import BreakerTerms
from amends.processors.gates import FIRST_PLACES
from amends.processors.terms import Terms
from amends.schemas.codec import encode
from amends.schemas.commands import DeadLetter, Incident, UndoCommand, WorkflowEcho
from amends.schemas.contract import Contract, Idempotency
from amends.schemas.data_flow import RULES, id_digest
from amends.schemas.decisions import BREAKER_OPEN, TOOL_MENDED
from amends.schemas.facts import (
    ACCEPTED,
    CHANGED_SINCE,
    Decision,
    Failure,
    Party,
    Resolution,
    StepStatus,
    UndoEvent,
    UndoStatus,
    WorkflowStatus,
)
from amends.schemas.keys import mended_key

TOOL = contract_of("pay", attempts_max=3)
OTHER = contract_of("book", attempts_max=3)
BREAKER = BreakerTerms(failures=5, pause_ms=1_000, pause_cap_ms=8_000, incident_ms=10_000)


def ledger_of(**terms: object) -> Ledger:
    return Ledger(Terms(breaker=BREAKER, **terms))  # type: ignore[arg-type]


def turned(ledger: Ledger, name: str, *contracts: Contract) -> None:
    ledger.workflow_id = name
    ledger.start(lease_ms=10_000_000)
    for contract in contracts or (TOOL,):
        ledger.did(f"{name}.{contract.tool_name}", contract)
    ledger.said(WorkflowStatus.FAILED)


class Remote:
    """Carries out what was commanded, each attempt once, as compensators do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen = 0
        self._done = set[tuple[str, int, int]]()
        self.broken = set[str]()
        self.calls: Counter[str] = Counter()

    def work(self) -> int:
        """Carry out what came since the last time; return how many undos that were."""
        ledger, count = self._ledger, 0
        commands = ledger.of(UndoCommand)
        for command in commands[self._seen :]:
            ledger.workflow_id = command.workflow_id
            for entry in command.entries:
                name = (entry.step_id, entry.generation, entry.attempt)
                if name in self._done:
                    continue
                self._done.add(name)
                count += 1
                self.calls[entry.tool_name] += 1
                undo = partial(ledger.undo, entry.step_id, generation=entry.generation, attempt=entry.attempt)
                undo(UndoStatus.STARTED, lease_ms=30_000)
                if entry.tool_name in self.broken:
                    undo(UndoStatus.FAILED, retryable=True)
                    break
                undo(UndoStatus.UNDONE)
        self._seen = len(commands)
        return count

    def work_off(self) -> None:
        while self.work():
            pass

    def drain(self, *, within_ms: int = 600_000) -> None:
        end_ms = self._ledger.now_ms + within_ms
        while self._ledger.now_ms < end_ms:
            self.work_off()
            due_ms = self._ledger.partition.next_due_ms()
            if due_ms is None or not any_open(self._ledger):
                return
            self._ledger.wait(max(1, min(due_ms - self._ledger.now_ms, 1_000)))


def any_open(ledger: Ledger) -> bool:
    return ledger.partition.open_workflows() > 0


def phases(ledger: Ledger) -> Counter[str]:
    last = {echo.workflow_id: echo.phase.value for echo in ledger.of(WorkflowEcho)}
    return Counter(last.values())


def breaker_incidents(ledger: Ledger) -> list[Incident]:
    return [incident for incident in ledger.of(Incident) if incident.kind == BREAKER_OPEN]


# --- a broken tool ----------------------------------------------------------------------------------------------------


def with_a_broken_tool(workflows: int) -> tuple[Ledger, Remote]:
    """Return a ledger on which so many workflows have turned, each with a `pay` to undo, and a remote that refuses."""
    ledger = ledger_of()
    remote = Remote(ledger)
    remote.broken.add("pay")
    for number in range(workflows):
        turned(ledger, f"w{number}")
    return ledger, remote


def test_a_broken_tool_is_left_alone_after_a_few_one_incident_says_so_and_when_mended_all_are_undone() -> None:
    ledger, remote = with_a_broken_tool(500)
    for _ in range(60):
        remote.work()
        ledger.wait(1_000)
    assert remote.calls["pay"] <= FIRST_PLACES + 20  # the first, then one at a time, ever more seldom
    assert ledger.of(DeadLetter) == []
    assert {incident.kind for incident in ledger.of(Incident)} == {BREAKER_OPEN}
    assert len({incident.incident_id for incident in ledger.of(Incident)}) == 1
    assert len(breaker_incidents(ledger)) < 12
    remote.broken.clear()
    remote.drain()
    assert phases(ledger) == {"COMPENSATED": 500}
    assert breaker_incidents(ledger)[-1].state.value == "CLOSED"


def test_a_broken_tool_holds_up_no_other_of_its_lane() -> None:
    ledger = ledger_of()
    remote = Remote(ledger)
    remote.broken.add("pay")
    for number in range(100):
        turned(ledger, f"p{number}", TOOL)
        turned(ledger, f"b{number}", OTHER)
    for _ in range(10):
        remote.work()
        ledger.wait(100)
    assert remote.calls["book"] == 100
    assert phases(ledger)["COMPENSATED"] == 100


def test_a_run_is_cut_before_the_tool_that_is_left_alone() -> None:
    ledger = ledger_of()
    remote = Remote(ledger)
    remote.broken.add("pay")
    for number in range(BREAKER.failures):
        turned(ledger, f"w{number}")
    remote.work()
    turned(ledger, "both", TOOL, OTHER)  # the booking is undone first, then the payment
    assert ledger.commanded()[-1] == [("both.book", 0, 0)]
    remote.work()
    assert ledger.commanded()[-1] == [("both.book", 0, 0)]


def test_after_the_pause_one_undo_is_tried_and_no_other_until_it_ended() -> None:
    ledger, remote = with_a_broken_tool(50)
    remote.work_off()
    assert ledger.partition.breaker("pay").is_open
    before = len(ledger.commanded())
    ledger.wait(4_000)
    assert len(ledger.commanded()) == before + 1
    remote.work()
    assert len(ledger.commanded()) == before + 1
    assert ledger.partition.breaker("pay").pauses == 2


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("grace_ms", [10_000, 10_000_000], ids=["forgotten", "held"])
def test_a_person_who_has_an_undo_of_a_forgotten_workflow_tried_again_says_that_its_tool_works(
    grace_ms: int, dies: bool
) -> None:
    """Seen by the simulation (seeds 1211275, 1259960): what was first folded by a pass no breaker heard."""
    ledger = Ledger(Terms(grace_ms=grace_ms, breaker=BreakerTerms(1, 100_000, 100_000, 200_000)))
    started = ledger.start(lease_ms=10_000_000)
    ledger.did("pay", TOOL)
    ledger.said(WorkflowStatus.FAILED)
    ledger.undo("pay", UndoStatus.STARTED)
    ledger.undo("pay", UndoStatus.FAILED, retryable=True)
    ledger.resolve("pay", Decision.ACCEPT_LOSS, writer=Party.PERSON, version=0)
    assert ledger.partition.breaker("pay").is_open
    ledger.now_ms += 20_000
    turned(ledger, "other", OTHER)
    assert (ledger.partition.workflow("w") is None) is (grace_ms == 10_000)
    ledger.refolds = False
    retry = Resolution("w", Decision.RETRY, Party.PERSON, "ann", step_id="pay", workflow_offset=started)
    ledger.append(retry)
    if dies:
        ledger.crash()
    ledger.refold()
    mended = ledger.partition.breaker("pay")
    assert (mended.mended_by, mended.retry_at_ms) == ("ann", ledger.now_ms)
    ledger.checkpoint()
    ledger.crash()
    ledger.refold()
    assert ledger.partition.breaker("pay") == mended


def test_an_undo_that_was_let_through_is_tried_again_when_word_of_an_older_attempt_opens_the_breaker_anew() -> None:
    """Seen by the simulation (seed 1003932): it waited for the undo that had been let through, that is, for itself."""
    ledger = Ledger(Terms(breaker=BreakerTerms(1, 4_000, 8_000, 10_000)))
    turned(ledger, "w", TOOL)
    ledger.undo("w.pay", UndoStatus.STARTED)
    ledger.undo("w.pay", UndoStatus.FAILED, retryable=True)
    assert ledger.partition.breaker("pay").is_open
    ledger.wait(5_000)
    assert ledger.commanded()[-1] == [("w.pay", 0, 1)]
    ledger.undo("w.pay", UndoStatus.STARTED, attempt=1)
    taken = UndoEvent("w", "w.pay", 0, 1, UndoStatus.UNKNOWN, "o", error=Failure(ACCEPTED, "202"))
    ledger.append(taken)
    ledger.wait(3_000)
    assert ledger.commanded()[-1] == [("w.pay", 0, 2)]  # and nobody has begun it
    ledger.undo("w.pay", UndoStatus.FAILED, retryable=True, attempt=1)  # the remote will not do it after all
    count = len(ledger.commanded())
    ledger.wait(3_500)
    assert len(ledger.commanded()) == count
    due_ms = ledger.partition.next_due_ms()
    assert due_ms == ledger.partition.breaker("pay").retry_at_ms
    ledger.wait(due_ms - ledger.now_ms)
    assert len(ledger.commanded()) == count + 1
    ledger.undo("w.pay", UndoStatus.STARTED, attempt=2)
    ledger.undo("w.pay", UndoStatus.UNDONE, attempt=2)
    assert ledger.phase == "COMPENSATED"
    assert ledger.partition.undos_waiting() == 0


def test_once_it_works_again_undos_go_on_a_few_at_a_time() -> None:
    ledger, remote = with_a_broken_tool(200)
    remote.work_off()
    remote.broken.clear()
    ledger.wait(1_100)
    sizes: list[int] = []
    while (count := remote.work()) and sum(sizes) < 100:
        sizes.append(count)
    assert sizes[0] == 1
    assert sizes[1] <= 2
    assert sizes[2] <= 4


def test_a_breaker_survives_a_restart_of_the_processor() -> None:
    ledger, remote = with_a_broken_tool(50)
    remote.work()
    opened = ledger.partition.breaker("pay")
    before = len(ledger.commanded())
    for checkpoint in (True, False):
        ledger.crash(checkpoint=checkpoint)
        assert ledger.partition.breaker("pay") == opened
        assert len(ledger.commanded()) == before


def test_the_incident_of_a_breaker_is_closed_by_whoever_owns_the_partition_then() -> None:
    ledger, remote = with_a_broken_tool(20)
    for _ in range(20):
        remote.work_off()
        ledger.wait(1_000)
    assert breaker_incidents(ledger)[-1].state.value == "OPEN"
    ledger.crash()
    remote.broken.clear()
    remote.drain()
    assert breaker_incidents(ledger)[-1].state.value == "CLOSED"
    assert phases(ledger) == {"COMPENSATED": 20}


def test_a_person_who_retries_an_undo_of_the_tool_has_it_tried_at_once() -> None:
    ledger, remote = with_a_broken_tool(50)
    remote.work_off()
    before = len(ledger.commanded())
    ledger.append(Resolution("w0", Decision.RETRY, Party.PERSON, "ann", step_id="w0.pay"))
    assert len(ledger.commanded()) == before + 1


def test_a_person_who_says_that_a_tool_is_mended_has_it_tried_at_once_and_no_workflow_is_made_of_it() -> None:
    ledger, remote = with_a_broken_tool(50)
    for _ in range(20):
        remote.work_off()
        ledger.wait(1_000)
    assert breaker_incidents(ledger)[-1].state.value == "OPEN"
    before, held = len(ledger.commanded()), ledger.partition.held()
    ruling = Resolution("", Decision.RETRY, Party.PERSON, "ann", attributes={TOOL_MENDED: "pay"})
    ledger.append(None, raw=encode(ruling), key=mended_key("pay"))
    ledger.look()
    assert len(ledger.commanded()) == before + 1
    last = breaker_incidents(ledger)[-1]
    assert (last.state.value, last.closed_by) == ("CLOSED", "ann")
    assert ledger.partition.held() == held
    assert not any(emission.topic.startswith("dlq.") for emission in ledger.raw)
    remote.work_off()
    ledger.wait(100)
    assert breaker_incidents(ledger)[-1].state.value == "OPEN"


def test_what_the_world_changed_says_nothing_about_the_tool() -> None:
    ledger = ledger_of()
    for number in range(20):
        turned(ledger, f"w{number}")
        name = f"w{number}.pay"
        ledger.undo(name, UndoStatus.STARTED)
        changed = Failure(CHANGED_SINCE, "somebody wrote it anew")
        ledger.append(UndoEvent(f"w{number}", name, 0, 0, UndoStatus.FAILED, "o", error=changed, retryable=False))
    assert not ledger.partition.breaker("pay").is_open


def test_undos_that_are_refused_for_good_one_after_another_open_it_too() -> None:
    """Wrong credentials are refused for good: 10,000 dead letters would say the same."""
    ledger = ledger_of()
    for number in range(20):
        turned(ledger, f"w{number}")
    for command in ledger.of(UndoCommand):
        ledger.workflow_id = command.workflow_id
        ledger.undo(command.entries[0].step_id, UndoStatus.STARTED)
        ledger.undo(command.entries[0].step_id, UndoStatus.FAILED, retryable=False)
    assert ledger.partition.breaker("pay").is_open
    assert len(ledger.of(DeadLetter)) == FIRST_PLACES


# --- places, rates, turns ---------------------------------------------------------------------------------------------


def test_at_most_so_many_undos_of_a_tool_are_under_way() -> None:
    ledger = ledger_of(tool_undos_max=10)
    remote = Remote(ledger)
    for number in range(100):
        turned(ledger, f"w{number}")
    assert len(ledger.commanded()) == 10
    assert ledger.partition.undos_waiting() == 90
    remote.drain()
    assert phases(ledger) == {"COMPENSATED": 100}


def test_a_tool_that_is_full_holds_up_no_other_of_its_lane_and_a_full_lane_does() -> None:
    ledger = ledger_of(tool_undos_max=3, lane_undos_max=5)
    for number in range(10):
        turned(ledger, f"p{number}", TOOL)
    for number in range(10):
        turned(ledger, f"b{number}", OTHER)
    heads = Counter(command[0][0].split(".")[1] for command in ledger.commanded())
    assert heads == {"pay": 3, "book": 2}


def test_whoever_turned_first_goes_first() -> None:
    ledger = ledger_of(tool_undos_max=1)
    remote = Remote(ledger)
    for number in range(30):
        turned(ledger, f"w{number}")
        ledger.now_ms += 1
    remote.drain()
    assert [command[0][0] for command in ledger.commanded()] == [f"w{number}.pay" for number in range(30)]


def test_whoever_turned_first_goes_first_after_a_restart_too() -> None:
    ledger = ledger_of(tool_undos_max=1)
    remote = Remote(ledger)
    for number in (3, 1, 2, 0):
        turned(ledger, f"w{number}")
        ledger.now_ms += 1
    ledger.undo("w3.pay", UndoStatus.STARTED)
    ledger.workflow_id = "w3"
    ledger.undo("w3.pay", UndoStatus.STARTED)
    ledger.crash()
    assert len(ledger.commanded()) == 1  # what had begun has its place
    ledger.undo("w3.pay", UndoStatus.UNDONE)
    remote.drain()
    assert [command[0][0] for command in ledger.commanded()] == ["w3.pay", "w1.pay", "w2.pay", "w0.pay"]


def test_no_more_undos_of_a_tool_begin_in_a_second_than_its_rate_says() -> None:
    ledger = ledger_of(tool_undos_per_minute=1_200)
    remote = Remote(ledger)
    for number in range(100):
        turned(ledger, f"w{number}")
    began_ms, most = ledger.now_ms, 0
    while any_open(ledger):
        remote.work()
        ledger.wait(50, step_ms=50)
        most = max(most, len(ledger.commanded()))
        assert len(ledger.commanded()) <= 20 * (ledger.now_ms - began_ms) / 1_000 + 1
    assert 4_500 <= ledger.now_ms - began_ms <= 6_500


def test_a_tool_has_the_bounds_of_its_own_contract_and_the_others_those_of_the_processor() -> None:
    assert TOOL.undo is not None
    own = replace(TOOL, undo=replace(TOOL.undo, undos_max=2, breaker_failures=1))
    ledger = ledger_of(tool_undos_max=3)
    for number in range(10):
        turned(ledger, f"p{number}", own)
        turned(ledger, f"b{number}", OTHER)
    heads = Counter(command[0][0].split(".")[1] for command in ledger.commanded())
    assert heads == {"pay": 2, "book": 3}
    for tool, name in (("pay", "p0"), ("book", "b0")):
        ledger.workflow_id = name
        ledger.undo(f"{name}.{tool}", UndoStatus.STARTED)
        ledger.undo(f"{name}.{tool}", UndoStatus.FAILED, retryable=True)
    assert ledger.partition.breaker("pay").is_open
    assert not ledger.partition.breaker("book").is_open


def test_each_partition_has_its_share_of_what_is_bounded_over_all() -> None:
    ledger = ledger_of(tool_undos_max=20, partitions=8)
    for number in range(10):
        turned(ledger, f"w{number}")
    assert len(ledger.commanded()) == 2


def test_new_work_goes_on_while_undos_wait() -> None:
    ledger = ledger_of(tool_undos_max=2)
    for number in range(50):
        turned(ledger, f"w{number}")
    ledger.workflow_id = "new"
    ledger.start()
    ledger.did("new.pay", TOOL)
    ledger.said(WorkflowStatus.SUCCEEDED)
    assert phases(ledger)["SUCCEEDED"] == 1


def test_a_place_is_given_back_whatever_ends_an_attempt() -> None:
    ends = (UndoStatus.UNDONE, UndoStatus.NOTHING_TO_UNDO, UndoStatus.FAILED, UndoStatus.UNKNOWN, UndoStatus.RELEASED)
    ledger = ledger_of(tool_undos_max=1)
    for number, status in enumerate(ends):
        turned(ledger, f"w{number}")
        ledger.undo(f"w{number}.pay", UndoStatus.STARTED)
        ledger.undo(f"w{number}.pay", status)  # for good
        if status in (UndoStatus.UNKNOWN, UndoStatus.RELEASED):
            ledger.resolve(f"w{number}.pay", Decision.MARK_UNDONE, writer=Party.PERSON)
        assert ledger.partition.undos_under_way("pay") == 0, status
    assert ledger.partition.undos_waiting() == 0


def test_a_run_that_stopped_gives_back_the_places_behind_it() -> None:
    ledger = ledger_of()
    turned(ledger, "w", TOOL, OTHER)
    assert ledger.partition.undos_under_way("pay") == 1
    ledger.undo("w.book", UndoStatus.STARTED)
    ledger.undo("w.book", UndoStatus.FAILED, retryable=True)
    assert ledger.partition.undos_under_way("pay") == 0


# --- what the fold promises of budgets --------------------------------------------------------------------------------


def test_what_was_commanded_and_has_not_begun_gives_its_place_to_what_is_undone_before_it() -> None:
    """Seen by the simulation: each waited for the other, for ever, and nobody was told."""
    ledger = ledger_of(lane_undos_max=1)
    turned(ledger, "w", TOOL, OTHER)
    ledger.undo("w.book", UndoStatus.STARTED)
    ledger.undo("w.book", UndoStatus.FAILED, retryable=False)  # for good
    ledger.wait(6_000)
    assert ledger.commanded()[-1] == [("w.pay", 0, 0)]  # and nobody has begun it
    ledger.resolve("w.book", Decision.RETRY, writer=Party.PERSON)
    assert ledger.commanded()[-1][0][0] == "w.book"
    assert ledger.partition.undos_waiting() == 0


def test_what_is_left_of_a_run_is_not_commanded_on_the_place_of_what_has_begun_of_it() -> None:
    """Seen by the simulation (seed 1345979): two were under way at a lane that bears one."""
    ledger = ledger_of(lane_undos_max=1)
    ledger.start(lease_ms=10_000_000)
    for contract in (TOOL, OTHER):  # that have nothing to do with one another
        uses = (id_digest(contract.tool_name),)
        ledger.started(contract.tool_name, contract, data_flow=RULES, uses=uses)
        ledger.ended(contract.tool_name, StepStatus.SUCCEEDED, data_flow=RULES)
    ledger.did("ship", contract_of("ship"))  # and what may be built on both
    ledger.said(WorkflowStatus.FAILED)
    run = [("ship", 0, 0), ("book", 0, 0), ("pay", 0, 0)]
    assert ledger.commanded() == [run]
    ledger.undo("ship", UndoStatus.STARTED)
    ledger.undo("ship", UndoStatus.UNDONE)
    ledger.undo("book", UndoStatus.STARTED, lease_ms=60_000)
    ledger.wait(30_000)
    assert ledger.commanded() == [run]
    ledger.undo("book", UndoStatus.UNDONE)
    ledger.wait(6_000)
    assert ledger.commanded()[-1] == [("pay", 0, 0)]
    assert ledger.partition.undos_waiting() == 0


def test_the_budget_of_attempts_survives_restarts_and_forward_attempts_do_not_eat_it() -> None:
    keyed = contract_of("pay", call=Idempotency.KEY, attempts_max=3)
    ledger = ledger_of()
    ledger.start()
    for call in ("p1", "p2", "p3", "p4"):
        ledger.started("w.pay", keyed, attempt=call)
        ledger.ended("w.pay", StepStatus.UNKNOWN if call != "p4" else StepStatus.SUCCEEDED, attempt=call)
    ledger.said(WorkflowStatus.FAILED)
    ledger.wait(1_500)
    for attempt in range(3):
        assert ledger.step("w.pay").undo is not None
        assert ledger.commanded()[-1] == [("w.pay", 0, attempt)]
        ledger.undo("w.pay", UndoStatus.STARTED, attempt=attempt)
        ledger.crash()
        ledger.undo("w.pay", UndoStatus.FAILED, attempt=attempt, retryable=True)
        ledger.crash(checkpoint=attempt % 2 == 0)
        ledger.wait(2_000)
    undo = ledger.step("w.pay").undo
    assert undo is not None
    assert (undo.spent, undo.state.value) == (3, "dead")
    assert len(ledger.of(DeadLetter)) >= 1


def test_an_undo_that_waits_costs_as_little_whether_one_waits_or_thousands() -> None:
    """C24: what a waiting workflow costs beside its state is an entry in a queue, however long it waits."""

    def grown(count: int) -> int:
        ledger = ledger_of()
        ledger.refolds = False
        partition = ledger.partition
        for number in range(count):
            turned(ledger, f"w{number}")
        ledger.sent.clear()
        ledger.raw.clear()
        ledger.entries.clear()
        partition.changes()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(30):  # half an hour in which nobody undoes anything
            ledger.now_ms += 60_000
            partition.outputs(ledger.now_ms)
            partition.timeouts(ledger.now_ms)
            partition.changes()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert partition.undos_waiting() == count - FIRST_PLACES
        return after - before

    assert grown(5_000) < 200_000
