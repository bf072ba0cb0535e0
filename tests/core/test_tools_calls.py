"""A tool's function is its function: what goes in and comes out is untouched, and only the runner knows of the call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import pickle
import re
import threading
import typing
from collections.abc import Coroutine, Iterator
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from amends.schemas.payload import SecretDigest, encode_payload
from amends.tools import (
    KEY,
    BoundCall,
    ContractError,
    OutsideWorkflow,
    RunningStep,
    Secret,
    compensable,
    current_step,
    irreversible,
    options,
    read_only,
    secret,
    set_outside,
    set_testing,
)
from amends.tools.errors import CannotResend
from amends.tools.runner import NO_OPTIONS, active_runner, running


class Recorder:
    """Runs calls and keeps them."""

    def __init__(self) -> None:
        self.calls: list[BoundCall] = []

    def call(self, bound: BoundCall) -> Any:
        self.calls.append(bound)
        with running(RunningStep("wf", "step", "attempt", "the-key", bound.tool.name)):
            return bound.invoke("the-key")

    async def call_async(self, bound: BoundCall) -> Any:
        self.calls.append(bound)
        return await bound.invoke("the-key")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    token = active_runner.set(made)
    yield made
    active_runner.reset(token)


@compensable("payments.charge", idempotency="key")
def charge(customer: str, amount_cents: int = 500, *lines: str, idempotency_key: str = KEY, **extra: Any) -> Any:
    """Charge a card."""
    return customer, amount_cents, lines, idempotency_key, extra


@irreversible("mail.send")
async def send(to: str, *, idempotency_key: str = KEY) -> str:
    await asyncio.sleep(0)
    return f"{to} {idempotency_key}"


def test_the_signature_a_model_sees_has_no_key() -> None:
    assert (
        str(inspect.signature(charge))
        == "(customer: 'str', amount_cents: 'int' = 500, *lines: 'str', **extra: 'Any') -> 'Any'"
    )
    assert "idempotency_key" not in charge.__annotations__
    assert "idempotency_key" not in typing.get_type_hints(charge)
    assert (charge.__name__, charge.__doc__, charge.__module__) == ("charge", "Charge a card.", __name__)


def test_a_tool_is_a_plain_function_to_frameworks() -> None:
    assert inspect.isfunction(charge)
    assert not inspect.iscoroutinefunction(charge)
    assert inspect.iscoroutinefunction(send)
    assert pickle.loads(pickle.dumps(charge)) is charge


def test_a_call_is_recorded_by_name_with_defaults_and_without_the_key(recorder: Recorder) -> None:
    assert charge("cus_1") == ("cus_1", 500, (), "the-key", {})
    assert charge("cus_1", 7, "a", "b", tax=1) == ("cus_1", 7, ("a", "b"), "the-key", {"tax": 1})
    assert recorder.calls[0].arguments == {"customer": "cus_1", "amount_cents": 500, "lines": [], "extra": {}}
    assert recorder.calls[1].arguments == {
        "customer": "cus_1",
        "amount_cents": 7,
        "lines": ["a", "b"],
        "extra": {"tax": 1},
    }


def test_what_a_tool_does_to_its_arguments_does_not_change_the_record(recorder: Recorder) -> None:
    @compensable("orders.ship")
    def ship(order: dict[str, Any], lines: list[Any], when: set[int]) -> str:
        lines.append(3)
        when.clear()
        return str(order.pop("id"))

    assert ship({"id": "o-1", "at": {"x": 1}}, [1, [2]], {5}) == "o-1"
    assert recorder.calls[0].arguments == {"order": {"id": "o-1", "at": {"x": 1}}, "lines": [1, [2]], "when": [5]}


async def test_async_stays_async(recorder: Recorder) -> None:
    made = send("x")
    assert inspect.iscoroutine(made)
    assert await made == "x the-key"
    assert recorder.calls[0].tool.asynchronous


def test_what_a_tool_raises_passes_untouched(recorder: Recorder) -> None:
    problem = KeyboardInterrupt("stop")

    @compensable("a")
    def fail() -> None:
        raise problem

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert caught.value is problem


def test_arguments_that_are_not_the_functions_are_the_callers_type_error(recorder: Recorder) -> None:
    with pytest.raises(TypeError, match="customer"):
        charge()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="call_id"):
        charge("cus_1", idempotency_key="mine")
    assert recorder.calls == []


def test_options_are_of_one_call(recorder: Recorder) -> None:
    charge.options(timeout="10s", call_id="line-1", repeatable=True)("cus_1")
    charge("cus_1")
    first, second = (call.options for call in recorder.calls)
    assert (first.timeout_ms, first.call_id, first.repeatable) == (10_000, "line-1", True)
    assert (second.timeout_ms, second.call_id, second.repeatable) == (None, None, None)
    with pytest.raises(ValueError, match="duration"):
        charge.options(timeout="soon")
    with pytest.raises(ValueError, match="call_id"):
        charge.options(call_id="")


class Payments:
    def __init__(self, account: str) -> None:
        self.account = account

    @compensable("payments.pay")
    def pay(self, amount: int) -> str:
        return f"{self.account} {amount}"

    @staticmethod
    @compensable("payments.static")
    def static(amount: int) -> int:
        return amount

    @classmethod
    @compensable("payments.of_class")
    def of_class(cls, amount: int) -> str:
        return f"{cls.__name__} {amount}"


def test_methods_are_tools_and_self_is_not_recorded(recorder: Recorder) -> None:
    payments = Payments("acc")
    assert payments.pay(1) == "acc 1"
    assert payments.pay(amount=2) == "acc 2"
    assert Payments.pay(payments, 3) == "acc 3"
    assert options(payments.pay, call_id="c")(4) == "acc 4"
    assert Payments.static(5) == 5
    assert payments.static(5) == 5  # type: ignore[call-arg]  # mypy binds it though it is static
    assert payments.of_class(6) == "Payments 6"
    assert [call.arguments for call in recorder.calls] == [{"amount": n} for n in (1, 2, 3, 4, 5, 5, 6)]
    assert recorder.calls[3].options.call_id == "c"
    assert str(inspect.signature(payments.pay)) == "(amount: 'int') -> 'str'"


class Plain:
    def double(self, amount: int) -> int:
        return 2 * amount


class Caller:
    def __init__(self) -> None:
        self.token = "hunter2"

    async def __call__(self, amount: int) -> int:
        return amount + 1


async def test_partials_and_callable_objects_are_tools(recorder: Recorder) -> None:
    def pay(account: str, amount: int, *, idempotency_key: str = KEY) -> str:
        return f"{account} {amount} {idempotency_key}"

    partial = compensable("a.partial")(functools.partial(pay, "acc"))
    assert partial(1) == "acc 1 the-key"
    assert partial.__name__ == "pay"
    called = compensable("a.object")(Caller())
    assert inspect.iscoroutinefunction(called)
    assert await called(1) == 2
    assert not hasattr(called, "token")
    bound = compensable("a.method")(Plain().double)
    assert bound(3) == 6
    assert [call.arguments for call in recorder.calls[:2]] == [{"amount": 1}, {"amount": 1}]


async def test_a_function_that_says_it_returns_an_awaitable_is_asynchronous(recorder: Recorder) -> None:
    @compensable("a")
    def post(text: str) -> Coroutine[Any, Any, str]:
        return send.tool.shape.function(text)  # type: ignore[no-any-return]

    assert inspect.iscoroutinefunction(post)
    assert (await post("x")).startswith("x")


# --- secrets --------------------------------------------------------------------------------------------------------


def test_a_secret_reaches_the_tool_and_nothing_else(recorder: Recorder) -> None:
    @compensable("users.create")
    def create(user: str, password: Annotated[str, Secret]) -> str:
        return password

    assert create("u", "hunter2") == "hunter2"
    assert create("u", "hunter2") == "hunter2"
    create("u", "hunter3")
    first, second, third = recorder.calls
    assert isinstance(first.arguments["password"], SecretDigest)
    assert first.arguments == second.arguments != third.arguments
    for text in (repr(first), str(first), encode_payload(first.arguments).decode()):
        assert "hunter2" not in text
    assert first.redact("bad password 'hunter2'") == "bad password '(secret)'"
    with pytest.raises(CannotResend, match="secret"):
        create.tool.call_again(first.arguments, "key")


@pytest.mark.parametrize(
    "value", ["hunter2", b"hunter2", SecretStr("hunter2"), {"pin": ["hunter2", None]}, ("", "hunter2")]
)
def test_a_secret_of_any_shape_is_kept_out_of_words(recorder: Recorder, value: Any) -> None:
    login = compensable("users.login")(secret("password")(lambda password: None))
    login(value)
    assert "hunter2" not in repr(recorder.calls[0])
    assert recorder.calls[0].redact("wrong: hunter2") == "wrong: (secret)"


# --- outside a workflow ---------------------------------------------------------------------------------------------


def test_outside_a_workflow_an_undoable_tool_refuses_to_run() -> None:
    with pytest.raises(OutsideWorkflow, match="with workflow"):
        charge("cus_1")


async def test_outside_a_workflow_an_async_tool_refuses_to_run() -> None:
    with pytest.raises(OutsideWorkflow):
        await send("x")


def test_a_read_only_tool_runs_anywhere_and_is_not_recorded(recorder: Recorder) -> None:
    look = read_only("stock.look")(lambda sku: f"{sku}: 3")
    assert look("a") == "a: 3"
    assert contextvars.Context().run(look, "b") == "b: 3"
    assert recorder.calls == []


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_a_mode_that_never_refuses_runs_tools_bare_with_a_key_never_seen_before(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENDS_MODE", mode)
    keys = {charge("cus_1")[3] for _ in range(3)}
    assert len(keys) == 3
    assert KEY not in keys


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_MODE", "of")
    with pytest.raises(ContractError, match="off, observe, enforce"):
        charge("cus_1")


def test_under_test_tools_run_bare_in_every_thread(recorder: Recorder) -> None:
    found: list[Any] = []
    set_testing()
    try:
        thread = threading.Thread(target=lambda: found.append(charge("cus_1")[0]))
        thread.start()
        thread.join()
        charge("cus_2")
    finally:
        set_testing(False)
    assert found == ["cus_1"]
    assert recorder.calls == []


def test_single_step_makes_a_workflow_of_a_call_outside_one() -> None:
    single = Recorder()
    with pytest.raises(ContractError, match="needs the runner"):
        set_outside("single-step")
    set_outside("single-step", single)
    try:
        assert charge("cus_1")[3] == "the-key"
    finally:
        set_outside("refuse")
    assert len(single.calls) == 1


def test_the_current_step_is_known_inside_a_call_and_nowhere_else(recorder: Recorder) -> None:
    deep = compensable("deep")(lambda: current_step().key)
    assert deep() == "the-key"
    with pytest.raises(OutsideWorkflow):
        current_step()


# --- again ----------------------------------------------------------------------------------------------------------


def test_a_keyed_call_is_made_again_from_its_record(recorder: Recorder) -> None:
    first = charge("cus_1", 7, "a", tax=1)
    recorded = recorder.calls[0].arguments
    assert charge.tool.call_again({**recorded, "lines": ["a"]}, "the-key") == first


def test_a_record_that_is_not_enough_is_not_sent_again() -> None:
    with pytest.raises(CannotResend, match="another version"):
        charge.tool.call_again({"client": "cus_1"}, "k")
    with pytest.raises(CannotResend, match="would do it twice"):
        compensable("a")(lambda: None).tool.call_again({}, "k")
    with pytest.raises(CannotResend, match="method"):
        Payments.pay.tool.call_again({"amount": 1}, "k")
    with pytest.raises(CannotResend, match="not kept"):
        charge.tool.call_again({"customer": SecretDigest("x")}, "k")


@pytest.mark.parametrize("given", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ()])
@pytest.mark.parametrize("named", [{}, {"b": 5}, {"c": 6}, {"a": 7}, {"a": 7, "b": 5}, {"d": 8}])
def test_a_call_is_bound_as_python_binds_it(given: tuple[int, ...], named: dict[str, int]) -> None:
    @compensable("a")
    def tool(a: int, b: int, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    try:
        bound = inspect.signature(tool).bind(*given, **named)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            tool.tool.bind(given, named, NO_OPTIONS)
        return
    bound.apply_defaults()
    call = tool.tool.bind(given, named, NO_OPTIONS)
    assert list(call.arguments.items()) == list(bound.arguments.items())
    assert call.invoke("k") == tuple(bound.arguments.values())
