"""One tool call, effect by effect: what is written, what is told, at every outcome and every point of a crash."""

from __future__ import annotations

import asyncio

import pytest
from tests.core.flows import RUNNING, TERMS, World, call, contract

from amends.producers.effects import (
    Acknowledged,
    Invoke,
    QueueFact,
    Raised,
    Result,
    Returned,
    Standing,
    Uncertain,
    Unwritten,
    Write,
    WriteFact,
)
from amends.producers.flow import call_flow, observed_flow
from amends.producers.outcome import NotDone, Reported
from amends.schemas.codec import decode, encode
from amends.schemas.commands import Phase
from amends.schemas.contract import UndoTerms
from amends.schemas.facts import StepEvent, StepStatus
from amends.schemas.keys import forward_key
from amends.tools.errors import AmendsError, LedgerUnavailable, LedgerUncertain, Rejected, WorkflowTurned

OK = Acknowledged(8)
LOST = Uncertain("no answer")
DOWN = Unwritten("no broker")
GOOD = Returned({"id": "ch_1"})


def test_a_call_is_intent_fence_effect_outcome() -> None:
    world = World()
    assert world.drive(call_flow(call(), TERMS)) == GOOD
    assert world.kinds() == [
        "AwaitStanding",
        "AwaitOwed",
        "ReadClock",
        "Admit",
        "WriteFact",
        "LookAtEcho",
        "ReadClock",
        "Invoke",
        "ReadClock",
        "WriteFact",
    ]
    started, succeeded = world.steps()
    assert started.status is StepStatus.STARTED
    assert (started.workflow_offset, started.epoch, started.lease_ms) == (7, 0, 60_000)
    assert decode(started.contract) == contract()
    assert started.input_payload == b'{"customer":"cus_1","cents":500}'
    assert (succeeded.status, succeeded.output_payload) == (StepStatus.SUCCEEDED, b'{"id":"ch_1"}')
    assert succeeded.undo_arguments == b'{"charge":"ch_1"}'
    assert (started.step_id, started.attempt) == (succeeded.step_id, succeeded.attempt)
    assert world.invoked()[0].key == forward_key(started.step_id)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (GOOD, "SUCCEEDED"),
        (Returned(None), "SUCCEEDED"),
        (Returned("failover: no errors, unavailable items: 0"), "SUCCEEDED"),
        (Returned({"is_error": True}), "UNKNOWN"),
        (Returned({"status": "error"}), "UNKNOWN"),
        (Returned(ValueError("?")), "UNKNOWN"),
        (Returned(PermissionError("card declined")), "FAILED"),
        (Returned(Reported({"status": "error"}, {})), "SUCCEEDED"),
        (Raised(PermissionError("card declined")), "FAILED"),
        (Raised(NotDone("the remote says no")), "FAILED"),
        (Raised(ValueError("?")), "UNKNOWN"),
        (Raised(TimeoutError()), "UNKNOWN"),
        (Raised(ConnectionResetError()), "UNKNOWN"),
        (Raised(asyncio.CancelledError()), "UNKNOWN*"),
        (Raised(KeyboardInterrupt()), "UNKNOWN*"),
        (Raised(SystemExit(3)), "UNKNOWN*"),
        (Raised(GeneratorExit()), "UNKNOWN*"),
        (Raised(BaseExceptionGroup("all", [PermissionError(), KeyboardInterrupt()])), "UNKNOWN*"),
        (Raised(ExceptionGroup("some", [PermissionError()])), "UNKNOWN"),
    ],
)
def test_only_a_declared_refusal_is_without_effect_and_the_rest_is_unknown(body: Result, status: str) -> None:
    world = World(body=body)
    assert world.drive(call_flow(call(), TERMS)) is body
    assert world.written() == ["STARTED", status]
    fact = world.steps()[-1]
    assert decode(encode(fact)) == fact


@pytest.mark.parametrize(("write", "error"), [(DOWN, LedgerUnavailable), (LOST, LedgerUncertain)])
def test_without_an_acknowledged_intent_the_tool_is_not_called(write: Write, error: type[AmendsError]) -> None:
    world = World(writes=[write])
    with pytest.raises(error):
        world.drive(call_flow(call(), TERMS))
    assert world.written() == ["STARTED", "NOT_EXECUTED*"]
    assert not world.invoked()


@pytest.mark.parametrize("write", [DOWN, LOST])
@pytest.mark.parametrize("body", [GOOD, Raised(ValueError("?")), Raised(PermissionError())])
def test_a_result_is_handed_over_even_if_its_outcome_cannot_be_written(write: Write, body: Result) -> None:
    world = World(writes=[OK, write], body=body)
    assert world.drive(call_flow(call(), TERMS)) is body
    assert len(world.written()) == 3
    assert world.written()[1] + "*" == world.written()[2]


@pytest.mark.parametrize(
    ("echo", "error"),
    [
        (Standing(7, 1, Phase.TURNED), WorkflowTurned),
        (Standing(7, 1, Phase.RUNNING), WorkflowTurned),
        (Standing(7, 1, Phase.COMPENSATED), WorkflowTurned),
        (Standing(7, 1, Phase.CLOSED_WITH_LOSS), WorkflowTurned),
        (Standing(7, 0, Phase.FINISHING), Rejected),
        (Standing(7, 0, Phase.SUCCEEDED), Rejected),
    ],
)
def test_the_fence_stops_a_call_whose_workflow_no_longer_runs(echo: Standing, error: type[AmendsError]) -> None:
    world = World(echo=echo)
    with pytest.raises(error):
        world.drive(call_flow(call(), TERMS))
    assert world.written() == ["STARTED", "NOT_EXECUTED*"]
    assert not world.invoked()


@pytest.mark.parametrize(("took_ms", "called"), [(14_999, True), (15_000, False), (600_000, False)])
def test_a_process_that_slept_for_half_a_lease_does_not_call(took_ms: int, called: bool) -> None:
    world = World(clock_ms=[100, 100 + took_ms])
    if called:
        world.drive(call_flow(call(), TERMS))
    else:
        with pytest.raises(LedgerUnavailable, match="half of its lease"):
            world.drive(call_flow(call(), TERMS))
        assert world.written() == ["STARTED", "NOT_EXECUTED*"]
    assert bool(world.invoked()) is called


def test_a_turned_workflow_makes_no_call_and_writes_nothing() -> None:
    world = World(standing=Standing(7, 1, Phase.TURNED, story="the charge was refunded"))
    with pytest.raises(WorkflowTurned, match="the charge was refunded"):
        world.drive(call_flow(call(), TERMS))
    assert world.kinds() == ["AwaitStanding"]


def test_without_a_processor_or_with_an_outcome_owed_no_call_is_made() -> None:
    for world in (World(standing=None), World(owed=False)):
        with pytest.raises(LedgerUnavailable):
            world.drive(call_flow(call(), TERMS))
        assert not world.written()


def test_arguments_too_large_for_the_ledger_are_refused_before_the_call() -> None:
    world = World()
    large = call()
    large = type(large)(large.contract, large.contract_bytes, {"text": "x" * 600_000})
    with pytest.raises(Rejected, match="600011 bytes"):
        world.drive(call_flow(large, TERMS))
    assert not world.effects


def test_a_result_too_large_for_the_ledger_is_cut_and_its_undo_arguments_are_kept() -> None:
    world = World(body=Returned({"id": "ch_1", "text": "x" * 5_000_000}))
    world.drive(call_flow(call(), TERMS))
    fact = world.steps()[-1]
    assert fact.status is StepStatus.SUCCEEDED
    assert fact.payload_digest is not None
    assert len(encode(fact)) < 600_000
    assert fact.undo_arguments == b'{"charge":"ch_1"}'


TOO_LARGE = Unwritten("MSG_SIZE_TOO_LARGE", too_large=True)


def test_an_outcome_larger_than_the_ledger_takes_is_written_without_what_the_call_gave() -> None:
    world = World(writes=[OK, TOO_LARGE, OK])
    assert world.drive(call_flow(call(), TERMS)) == GOOD
    assert world.written() == ["STARTED", "SUCCEEDED", "SUCCEEDED"]
    fact = world.steps()[-1]
    assert fact.output_payload is None
    assert fact.payload_digest is not None
    assert fact.undo_arguments == b'{"charge":"ch_1"}'


def test_an_intent_larger_than_the_ledger_takes_is_refused_for_its_size() -> None:
    with pytest.raises(Rejected, match=r"max\.message\.bytes"):
        World(writes=[TOO_LARGE]).drive(call_flow(call(), TERMS))


def test_resource_ids_of_any_kind_are_recorded_as_texts() -> None:
    ids = {"charge": 5, "\ud800": None}
    world = World(body=Returned(Reported({"id": "ch_1"}, ids)))  # type: ignore[arg-type]
    world.drive(call_flow(call(), TERMS))
    assert decode(encode(world.steps()[-1])) == world.steps()[-1]
    assert world.steps()[-1].external_resource_ids["charge"] == "5"


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("no")


_LOOP: list[object] = []
_LOOP.append(_LOOP)


@pytest.mark.parametrize(
    "value",
    [[1], "", None, b"\x00\xff", float("nan"), "\ud800", "🙂", _LOOP, _Hostile(), {1: 2}, {"id": "\ud800"}, 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_tool_returns_something_is_recorded(value: object) -> None:
    body = Returned(value)
    world = World(body=body)
    assert world.drive(call_flow(call(), TERMS)) is body
    fact = world.steps()[-1]
    assert fact.status is StepStatus.SUCCEEDED
    assert decode(encode(fact)) == fact


class _Speechless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [_Speechless(), ValueError("\ud800"), ValueError("x" * 10_000_000), OSError(_LOOP)])
def test_whatever_a_tool_raises_something_is_recorded(error: Exception) -> None:
    world = World(body=Raised(error))
    world.drive(call_flow(call(), TERMS))
    fact = world.steps()[-1]
    assert fact.error is not None
    assert len(encode(fact)) < 10_000
    assert decode(encode(fact)) == fact


def test_a_tool_that_returns_what_has_not_run_yet_is_unknown() -> None:
    def later() -> object:
        yield 1

    world = World(body=Returned(later()))
    world.drive(call_flow(call(), TERMS))
    assert world.written() == ["STARTED", "UNKNOWN"]


def test_undo_arguments_of_the_input_alone_travel_in_the_intent() -> None:
    by_input = UndoTerms("payments.charge", "payments", arguments={"customer": "input.customer"})
    world = World(body=Raised(TimeoutError()))
    world.drive(call_flow(call(undo=by_input), TERMS))
    assert world.steps()[0].undo_arguments == b'{"customer":"cus_1"}'


def test_an_undo_that_cannot_be_resolved_does_not_hide_the_success() -> None:
    world = World(body=Returned({"no": "id"}))
    world.drive(call_flow(call(), TERMS))
    fact = world.steps()[-1]
    assert (fact.status, fact.undo_arguments) == (StepStatus.SUCCEEDED, None)
    assert "output.id" in fact.attributes["undo_unresolved"]


def test_a_secret_is_not_in_a_recorded_error() -> None:
    world = World(body=Raised(ValueError("bad token sk_live_1")))
    plain = call()
    world.drive(call_flow(type(plain)(plain.contract, plain.contract_bytes, {}, secrets=("sk_live_1",)), TERMS))
    assert world.steps()[-1].error is not None
    assert b"sk_live_1" not in encode(world.steps()[-1])


def test_resource_ids_of_a_recorded_step_are_on_its_outcome() -> None:
    world = World(body=Returned(Reported({"id": "ch_1"}, {"charge": "ch_1"})))
    world.drive(call_flow(call(), TERMS))
    assert world.steps()[-1].external_resource_ids == {"charge": "ch_1"}
    assert world.steps()[-1].output_payload == b'{"id":"ch_1"}'


# --- crashes and interruptions --------------------------------------------------------------------------------------

LENGTH = 10


@pytest.mark.parametrize("point", range(LENGTH))
@pytest.mark.parametrize("body", [GOOD, Raised(ValueError()), Raised(KeyboardInterrupt())])
def test_a_process_killed_at_any_point_never_called_without_an_intent(point: int, body: Result) -> None:
    world = World(body=body)
    flow = call_flow(call(), TERMS)
    answer = None
    for _ in range(point):
        try:
            answer = world.perform(flow.send(answer))
        except StopIteration:
            break
    flow.close()  # dropped as a killed process drops it: it must not try to do anything more
    if world.invoked():
        before = world.kinds().index("Invoke")
        assert any(isinstance(e, WriteFact) and e.fact.status.value == "STARTED" for e in world.effects[:before])


@pytest.mark.parametrize("point", range(LENGTH))
@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()])
def test_an_interruption_at_any_point_passes_and_leaves_no_attempt_open(
    point: int, interruption: BaseException
) -> None:
    world = World(interrupt_at=point, interruption=interruption)
    with pytest.raises(type(interruption)):
        world.drive(call_flow(call(), TERMS))
    after = world.effects[point + 1 :]
    assert all(isinstance(effect, QueueFact) for effect in after), "an interrupted flow must not wait"
    written = world.written()
    at_body = isinstance(world.effects[point], Invoke)  # a driver turns what the body raises into its result
    if "STARTED" in written and not at_body:
        called = bool(world.invoked())
        assert written[-1] == ("SUCCEEDED*" if called else "NOT_EXECUTED*")


# --- observe --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [GOOD, Raised(ValueError()), Raised(KeyboardInterrupt())])
def test_an_observed_call_waits_for_nothing_but_its_body(body: Result) -> None:
    world = World(body=body, standing=None, owed=False, writes=[DOWN], echo=Standing(7, 3, Phase.TURNED))
    assert world.drive(observed_flow(call(), TERMS, RUNNING)) is body
    assert world.kinds() == ["ReadClock", "Admit", "QueueFact", "Invoke", "ReadClock", "QueueFact"]


def test_an_observed_call_is_made_with_arguments_that_are_too_large_to_record() -> None:
    world = World()
    large = call()
    large = type(large)(large.contract, large.contract_bytes, {"text": "x" * 600_000})
    assert world.drive(observed_flow(large, TERMS, RUNNING)) == GOOD
    assert all(len(encode(fact)) < 10_000 for fact in world.facts() if isinstance(fact, StepEvent))
