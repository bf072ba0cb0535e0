"""Which step a call belongs to: repeated, resumed, condemned, for each kind of remote."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.flows import RUNNING, TERMS, WORKFLOW, World, call

from amends.producers.effects import Acknowledged, Raised, Returned, Standing, Uncertain
from amends.producers.flow import call_flow
from amends.schemas.commands import EndedEpoch, Phase
from amends.schemas.contract import CallTerms, Idempotency
from amends.schemas.facts import Decision, Fact, Party, Resolution, StepEvent, StepStatus, Timeout, TimeoutKind
from amends.tools.errors import AlreadyRunning, AmendsError, OutcomeUnknown, Rejected

KEY, NATURAL, NEITHER = Idempotency.KEY, Idempotency.NATURAL, Idempotency.NEITHER
KINDS = [KEY, NATURAL, NEITHER]


def lived(world: World, kind: Idempotency, statuses: list[str]) -> tuple[tuple[int, Fact], ...]:
    """Return the history of one call made by an earlier instance, whose facts had these statuses."""
    world.drive(call_flow(call(kind), TERMS))
    started, succeeded = world.steps()
    made: list[tuple[int, Fact]] = []
    for number, status in enumerate(statuses):
        fact = started if status == "STARTED" else replace(succeeded, status=StepStatus(status))
        made.append((8 + number, fact if status != "UNKNOWN" else replace(fact, output_payload=None)))
    return tuple(made)


def resumed(history: tuple[tuple[int, Fact], ...], standing: Standing = RUNNING) -> World:
    world = World(instance="there", standing=standing, echo=standing, body=Returned({"id": "ch_2"}))
    world.book.remember(history)
    return world


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_in_one_run_of_plain_code_is_a_new_step(kind: Idempotency) -> None:
    world = World()
    for _ in range(2):
        world.drive(call_flow(call(kind), TERMS))
    first, _, second, _ = world.steps()
    assert first.step_id != second.step_id
    assert first.attempt != second.attempt


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_starts_from_the_top_meets_the_same_steps(kind: Idempotency) -> None:
    before = World()
    history = lived(before, kind, ["STARTED", "SUCCEEDED"])
    world = resumed(history)
    assert world.drive(call_flow(call(kind), TERMS)) == Returned({"id": "ch_1"})
    assert not world.written()


@pytest.mark.parametrize("status", ["STARTED", "UNKNOWN"])
@pytest.mark.parametrize("kind", [KEY, NATURAL])
def test_a_call_left_open_or_unknown_is_sent_again_in_its_step_under_its_key(kind: Idempotency, status: str) -> None:
    before = World()
    history = lived(before, kind, ["STARTED"] if status == "STARTED" else ["STARTED", "UNKNOWN"])
    world = resumed(history)
    assert world.drive(call_flow(call(kind), TERMS)) == Returned({"id": "ch_2"})
    assert world.invoked()[0].key == before.invoked()[0].key
    assert world.steps()[0].step_id == before.steps()[0].step_id
    assert world.steps()[0].attempt != before.steps()[0].attempt


@pytest.mark.parametrize(
    ("statuses", "error"), [(["STARTED"], AlreadyRunning), (["STARTED", "UNKNOWN"], OutcomeUnknown)]
)
def test_a_remote_that_would_do_it_twice_is_not_sent_to_again(statuses: list[str], error: type[AmendsError]) -> None:
    before = World()
    world = resumed(lived(before, NEITHER, statuses))
    with pytest.raises(error) as refusal:
        world.drive(call_flow(call(NEITHER), TERMS))
    assert getattr(refusal.value, "step", "") == before.steps()[0].step_id
    assert not world.written()


@pytest.mark.parametrize("status", ["FAILED", "NOT_EXECUTED"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_without_effect_is_made_again(kind: Idempotency, status: str) -> None:
    before = World()
    world = resumed(lived(before, kind, ["STARTED", status]))
    world.drive(call_flow(call(kind), TERMS))
    same = world.steps()[0].step_id == before.steps()[0].step_id
    assert same is (kind is not NEITHER), "where nothing tells two sends apart, each is a step of its own"


UNDONE = EndedEpoch(0, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_an_ended_epoch_that_was_kept_is_met_again(kind: Idempotency) -> None:
    before = World()
    kept = replace(RUNNING, epoch=1, turns=(EndedEpoch(0, 1_000),))
    world = resumed(lived(before, kind, ["STARTED", "SUCCEEDED"]), kept)
    assert world.drive(call_flow(call(kind), TERMS)) == Returned({"id": "ch_1"})
    assert world.steps() == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_of_a_condemned_step_is_a_new_step(kind: Idempotency) -> None:
    before = World()
    world = resumed(lived(before, kind, ["STARTED", "SUCCEEDED"]), replace(RUNNING, epoch=1, turns=(UNDONE,)))
    assert world.drive(call_flow(call(kind), TERMS)) == Returned({"id": "ch_2"})
    assert world.steps()[0].step_id != before.steps()[0].step_id
    assert world.steps()[0].epoch == 1


def test_the_same_id_used_again_is_another_instance_with_other_steps() -> None:
    first, second = (
        World(),
        World(standing=replace(RUNNING, workflow_offset=99), echo=replace(RUNNING, workflow_offset=99)),
    )
    first.drive(call_flow(call(), TERMS))
    second.drive(call_flow(call(), TERMS))
    assert first.steps()[0].step_id != second.steps()[0].step_id


def test_a_key_the_remote_has_forgotten_protects_nothing() -> None:
    world = resumed(lived(World(), KEY, ["STARTED", "UNKNOWN"]))
    forgetful = CallTerms(idempotency=KEY, key_ttl_ms=60_000)
    world.wall_ms += 60_000
    with pytest.raises(OutcomeUnknown):
        world.drive(call_flow(call(KEY, call=forgetful), TERMS))


def test_a_tool_declared_repeatable_runs_again() -> None:
    before = World()
    history = lived(before, KEY, ["STARTED", "SUCCEEDED"])
    world = resumed(history)
    assert world.drive(call_flow(call(KEY, repeatable=True), TERMS)) == Returned({"id": "ch_2"})
    assert world.steps()[0].step_id != before.steps()[0].step_id


def test_a_callers_own_id_is_the_call_whatever_was_called_before() -> None:
    world = World()
    assert world.drive(call_flow(call(call_id="line-1"), TERMS)) == Returned({"id": "ch_1"})
    world.body = Returned({"id": "ch_2"})
    assert world.drive(call_flow(call(call_id="line-1"), TERMS)) == Returned({"id": "ch_1"})
    assert world.drive(call_flow(call(call_id="line-2"), TERMS)) == Returned({"id": "ch_2"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_open_here_is_not_made_beside_itself(kind: Idempotency) -> None:
    world = World()
    flow = call_flow(call(kind, call_id="line-1"), TERMS)
    effect = next(flow)
    while type(effect).__name__ != "Invoke":
        effect = flow.send(world.perform(effect))
    with pytest.raises(AlreadyRunning):
        world.drive(call_flow(call(kind, call_id="line-1"), TERMS))
    flow.close()


def test_a_finished_workflow_answers_from_the_record_and_makes_no_new_call() -> None:
    history = lived(World(), KEY, ["STARTED", "SUCCEEDED"])
    for phase in (Phase.FINISHING, Phase.SUCCEEDED):
        world = resumed(history, replace(RUNNING, phase=phase))
        assert world.drive(call_flow(call(), TERMS)) == Returned({"id": "ch_1"})
        with pytest.raises(Rejected, match="claimed success"):
            world.drive(call_flow(call(), TERMS))
        assert not world.written()


def test_a_result_that_was_cut_is_not_made_up() -> None:
    before = World()
    lived(before, KEY, [])
    started, succeeded = before.steps()
    world = resumed(((8, started), (9, replace(succeeded, payload_digest="00", output_payload=b"{}"))))
    with pytest.raises(Rejected, match="too large"):
        world.drive(call_flow(call(), TERMS))


def test_evidence_of_a_probe_counts_as_what_it_proves() -> None:
    before = World()
    history = lived(before, NEITHER, ["STARTED", "UNKNOWN"])
    started = before.steps()[0]
    present = Resolution(
        WORKFLOW, Decision.PRESENT, Party.COMPENSATOR, "c", step_id=started.step_id, output_payload=b'{"id":"ch_9"}'
    )
    assert resumed((*history, (10, present))).drive(call_flow(call(NEITHER), TERMS)) == Returned({"id": "ch_9"})
    absent = replace(present, decision=Decision.ABSENT, attempts=(started.attempt,), output_payload=None)
    assert resumed((*history, (10, absent))).drive(call_flow(call(NEITHER), TERMS)) == Returned({"id": "ch_2"})
    another = replace(absent, attempts=("another",))
    with pytest.raises(OutcomeUnknown):
        resumed((*history, (10, another))).drive(call_flow(call(NEITHER), TERMS))


def test_an_attempt_whose_lease_ran_out_is_unknown() -> None:
    before = World()
    history = lived(before, NEITHER, ["STARTED"])
    started = before.steps()[0]
    timeout = Timeout(WORKFLOW, TimeoutKind.STEP, 0, 8, 0, step_id=started.step_id, attempt=started.attempt)
    with pytest.raises(OutcomeUnknown):
        resumed((*history, (10, timeout))).drive(call_flow(call(NEITHER), TERMS))


def test_a_late_unknown_never_hides_a_success() -> None:
    for order in (["STARTED", "SUCCEEDED", "UNKNOWN"], ["SUCCEEDED", "STARTED"], ["UNKNOWN", "STARTED", "SUCCEEDED"]):
        world = resumed(lived(World(), KEY, order))
        assert world.drive(call_flow(call(), TERMS)) == Returned({"id": "ch_1"})


def test_a_long_run_does_not_hold_what_its_calls_returned() -> None:
    world = World()
    for _ in range(50):
        world.drive(call_flow(call(), TERMS))
    world.body = Raised(ValueError())
    world.drive(call_flow(call(), TERMS))
    world.writes = [Uncertain("?")]
    with pytest.raises(AmendsError):
        world.drive(call_flow(call(), TERMS))
    assert len(world.book) == 0


def test_two_spellings_of_one_call_are_one_call_to_a_resumed_run() -> None:
    before = World()
    before.drive(call_flow(call(), TERMS))
    spelt = replace(call(), arguments={"cents": 500.0, "customer": "cus_1"})
    started, succeeded = before.steps()
    assert isinstance(started, StepEvent)
    world = resumed(((8, started), (9, succeeded)))
    assert world.drive(call_flow(spelt, TERMS)) == Returned({"id": "ch_1"})


def test_only_acknowledged_is_acknowledged() -> None:
    world = World(writes=[Acknowledged(0)])  # 0 is a real offset
    assert world.drive(call_flow(call(), TERMS)) == Returned({"id": "ch_1"})
