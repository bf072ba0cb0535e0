"""The door for callbacks: a remote's webhook settles a call or an undo, once, and only the attempt that it names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from tests.core.ledger import Ledger, contract_of

from amends.producers import webhooks
from amends.producers.callback_settings import CallbackSettings
from amends.producers.callbacks import CallbackDoor, read_own
from amends.producers.effects import Acknowledged, Uncertain, Unwritten, Write
from amends.producers.ledger import History
from amends.producers.settling import AnswerUnfit
from amends.schemas.codec import decode
from amends.schemas.contract import Contract, Idempotency
from amends.schemas.facts import ACCEPTED, Failure, Resolution, StepStatus, UndoEvent, UndoStatus, WorkflowStatus
from amends.tools import Absent, ContractError, NotUndone, Present, RunningStep, Undone
from amends.tools.callbacks import (
    BASE_URL_VARIABLE,
    SECRETS_VARIABLE,
    CallbackToken,
    UnknownToken,
    read_token,
    write_token,
)
from amends.tools.errors import LedgerUnavailable

TOKEN_SECRET = "a secret for tokens: old"
NEW_TOKEN_SECRET = "a secret for tokens: new"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW_SIGNING = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
NOW_MS = 1_700_000_000_000
TAKEN = Failure(ACCEPTED, "202")
SETTINGS = CallbackSettings(
    token_secrets=(SecretStr(NEW_TOKEN_SECRET), SecretStr(TOKEN_SECRET)),
    signing_secrets=(SecretStr(NEW_SIGNING), SecretStr(SIGNING)),
    body_bytes_max=2_048,
)


@dataclass
class FoldedLedger:
    """A ledger whose facts the real fold takes."""

    fold: Ledger = field(default_factory=Ledger)
    write: Write | None = None  # in place of an acknowledgement
    unreadable: bool = False
    written: list[Resolution | UndoEvent] = field(default_factory=list)

    async def write_async(self, fact: Resolution | UndoEvent, /) -> Write:
        if self.write is not None:
            return self.write
        self.written.append(fact)
        return Acknowledged(self.fold.append(fact))

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History:
        if self.unreadable:
            raise LedgerUnavailable("no broker")
        found = self.fold.entries[from_offset : to_offset + 1]
        return tuple((e.offset, decode(e.value or b"")) for e in found)  # type: ignore[misc]

    def close(self) -> None: ...


def contract(*, undo: Idempotency = Idempotency.NEITHER) -> Contract:
    made = contract_of("t", undo=undo)
    assert made.undo is not None
    return dataclasses.replace(made, undo=dataclasses.replace(made.undo, arguments={"charge": "output.id"}))


def taken_call(*, finishing: bool = True) -> FoldedLedger:
    """A workflow that waits for its one call, which the remote took: STARTED stands at 1."""
    ledger = FoldedLedger()
    ledger.fold.start()
    ledger.fold.started("t", contract(), undo_arguments=None)
    ledger.fold.ended("t", StepStatus.UNKNOWN, error=TAKEN)
    ledger.fold.said(WorkflowStatus.SUCCEEDED if finishing else WorkflowStatus.FAILED)
    return ledger


def taken_undo() -> FoldedLedger:
    ledger = FoldedLedger()
    ledger.fold.start()
    ledger.fold.did("t", contract())
    ledger.fold.said(WorkflowStatus.FAILED)
    ledger.fold.undo("t", UndoStatus.STARTED, owner="delivery")
    ledger.fold.append(UndoEvent("w", "t", 0, 0, UndoStatus.UNKNOWN, "delivery", error=TAKEN))
    return ledger


CALL = CallbackToken("w", 0, "t", "p1", started_offset=1)
UNDO = CallbackToken("w", 0, "t", "0", started_offset=1, generation=0, owner="delivery")


def door(ledger: FoldedLedger) -> CallbackDoor:
    return CallbackDoor(ledger, SETTINGS, now_ms=lambda: NOW_MS)


@dataclass
class Post:
    """One request, as an ASGI server would hand it over."""

    body: bytes = b"{}"
    token: str = field(default_factory=lambda: write_token(CALL, TOKEN_SECRET))
    message_id: str = "msg_1"
    timestamp_s: int = NOW_MS // 1000
    secret: str = SIGNING
    method: str = "POST"
    path: str | None = None
    signature: str | None = None
    chunk_bytes: int = 100

    async def to(self, app: CallbackDoor) -> int:
        signature = self.signature
        if signature is None:
            signature = webhooks.sign(self.message_id, self.timestamp_s, self.body, self.secret)
        headers = {
            "Webhook-Id": self.message_id,
            "webhook-timestamp": str(self.timestamp_s),
            "webhook-signature": signature,
        }
        chunks = [self.body[i : i + self.chunk_bytes] for i in range(0, len(self.body), self.chunk_bytes)] or [b""]
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": self.method,
            "path": f"/callbacks/{self.token}" if self.path is None else self.path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await app(scope, receive, send)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        return int(sent[0]["status"])


def said(**fields: object) -> bytes:
    return json.dumps(fields).encode()


# --- signatures -----------------------------------------------------------------------------------------------------


def test_the_test_vector_of_the_reference_implementation_is_signed_as_it_is_there() -> None:
    message_id, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}'
    wanted = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert webhooks.sign(message_id, 1614265330, body, SIGNING) == wanted
    headers = {"webhook-id": message_id, "webhook-timestamp": "1614265330", "webhook-signature": f"v1,AAAA {wanted}"}
    assert webhooks.verify(headers, body, [NEW_SIGNING, SIGNING], 1614265330_000) == message_id


@pytest.mark.parametrize(
    "changed",
    [
        {"timestamp_s": NOW_MS // 1000 - 301},
        {"timestamp_s": NOW_MS // 1000 + 301},
        {"signature": ""},
        {"signature": "v1,bm8="},
        {"signature": "v1," + "ü" * 10},
        {"message_id": ""},
        {"message_id": "m" * 300},
        {"secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
    ],
)
async def test_what_the_remote_did_not_sign_just_now_is_refused(changed: dict[str, Any]) -> None:
    ledger = taken_call()
    assert await Post(said(outcome="absent"), **changed).to(door(ledger)) == 401
    assert ledger.written == []


async def test_an_old_secret_and_a_new_one_are_both_taken_while_they_are_rotated() -> None:
    for token_secret in (TOKEN_SECRET, NEW_TOKEN_SECRET):
        for secret in (SIGNING, NEW_SIGNING):
            post = Post(said(outcome="absent"), token=write_token(CALL, token_secret), secret=secret)
            assert await post.to(door(taken_call())) == 204


@pytest.mark.parametrize("wrong", [{"signing_secrets": ("whsec_?",)}, {"signing_secrets": ("whsec_c2hvcnQ=",)}])
def test_a_secret_that_is_none_is_refused_at_the_start_and_not_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        CallbackSettings(**wrong)
    assert "c2hvcnQ=" not in str(refused.value)
    with pytest.raises(ValidationError):
        CallbackSettings(token_secrets=(SecretStr("short"),))


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [CALL, UNDO, CallbackToken("wörk/flow?", 3, "s", "a,b")])
def test_a_token_names_what_it_was_made_for_and_fits_into_a_path(token: CallbackToken) -> None:
    text = write_token(token, TOKEN_SECRET)
    assert read_token(text, [NEW_TOKEN_SECRET, TOKEN_SECRET]) == token
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


@pytest.mark.parametrize(
    "text", ["", ".", "abc", "abc.def", write_token(CALL, "some other secret"), "ü.ü", "x" * 9_000]
)
async def test_a_token_that_is_not_ours_is_not_found(text: str) -> None:
    with pytest.raises(UnknownToken):
        read_token(text, [TOKEN_SECRET])
    assert await Post(said(outcome="absent"), token=text).to(door(taken_call())) == 404


def test_a_changed_token_is_not_ours() -> None:
    text = write_token(CALL, TOKEN_SECRET)
    body, _, signature = text.partition(".")
    other = write_token(dataclasses.replace(CALL, attempt="p2"), TOKEN_SECRET).partition(".")[0]
    with pytest.raises(UnknownToken):
        read_token(f"{other}.{signature}", [TOKEN_SECRET])
    assert body != other


def test_the_step_under_way_gives_its_token_and_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    step = RunningStep("w", "t", "p1", "key", "t", workflow_offset=0, started_offset=1)
    monkeypatch.delenv(SECRETS_VARIABLE, raising=False)
    monkeypatch.delenv(BASE_URL_VARIABLE, raising=False)
    with pytest.raises(ContractError, match=SECRETS_VARIABLE):
        step.callback_token()
    monkeypatch.setenv(SECRETS_VARIABLE, f"{NEW_TOKEN_SECRET},{TOKEN_SECRET}")
    assert read_token(step.callback_token(), [NEW_TOKEN_SECRET]) == CALL
    with pytest.raises(ContractError, match=BASE_URL_VARIABLE):
        step.callback_url()
    monkeypatch.setenv(BASE_URL_VARIABLE, "https://amends.example.com/")
    assert step.callback_url() == f"https://amends.example.com/callbacks/{step.callback_token()}"
    undo = RunningStep("w", "t", "0", "key", "t", 0, 1, generation=0, owner="delivery")
    assert read_token(undo.callback_token(), [NEW_TOKEN_SECRET]) == UNDO
    with pytest.raises(ContractError, match="probe"):
        dataclasses.replace(step, attempt="").callback_token()


# --- what is settled ------------------------------------------------------------------------------------------------


async def test_a_call_that_the_remote_did_later_is_present_with_what_it_gave() -> None:
    ledger = taken_call()
    body = said(outcome="present", output={"id": "ch_1"}, external_resource_ids={"charge": "ch_1"})
    assert await Post(body).to(door(ledger)) == 204
    assert ledger.fold.phase == "SUCCEEDED"
    assert ledger.fold.step("t").undo_arguments == b'{"charge":"ch_1"}'
    (fact,) = ledger.written
    assert isinstance(fact, Resolution)
    assert (fact.by, fact.attempts, fact.workflow_offset) == ("callback msg_1", ("p1",), 0)


async def test_a_call_that_came_to_pass_after_its_workflow_failed_is_undone() -> None:
    ledger = taken_call(finishing=False)
    await Post(said(outcome="present", output={"id": "ch_1"})).to(door(ledger))
    ledger.fold.wait(2_000)
    assert ledger.fold.commanded()[0] == [("t", 0, 0)]


async def test_a_call_that_the_remote_will_not_do_is_absent() -> None:
    ledger = taken_call(finishing=False)
    assert await Post(said(outcome="absent", evidence="declined")).to(door(ledger)) == 204
    assert ledger.fold.phase == "COMPENSATED"


async def test_a_callback_that_comes_before_the_call_has_ended_counts_once_it_has() -> None:
    ledger = FoldedLedger()
    ledger.fold.start()
    ledger.fold.started("t", contract(), undo_arguments=None)
    ledger.fold.said(WorkflowStatus.FAILED)
    await Post(said(outcome="absent")).to(door(ledger))
    assert ledger.fold.phase == "TURNED"  # it is still under way
    ledger.fold.ended("t", StepStatus.UNKNOWN, error=TAKEN)
    assert ledger.fold.phase == "COMPENSATED"


async def test_an_absent_that_contradicts_a_success_is_an_incident() -> None:
    ledger = taken_call()
    ledger.fold.ended("t", StepStatus.SUCCEEDED, output_payload=b'{"id":"ch_1"}')
    assert await Post(said(outcome="absent")).to(door(ledger)) == 204
    assert ledger.fold.incidents()["contradiction"] == "OPEN"


async def test_an_undo_that_the_remote_did_later_is_undone() -> None:
    ledger = taken_undo()
    post = Post(said(outcome="undone", evidence="refund re_1"), token=write_token(UNDO, TOKEN_SECRET))
    assert await post.to(door(ledger)) == 204
    assert ledger.fold.phase == "COMPENSATED"


async def test_an_undo_that_the_remote_will_not_do_is_tried_again() -> None:
    ledger = taken_undo()
    ledger.fold.wait(2_000)
    post = Post(said(outcome="not_undone", reason="declined"), token=write_token(UNDO, TOKEN_SECRET))
    assert await post.to(door(ledger)) == 204
    ledger.fold.wait(2_000)
    assert ledger.fold.commanded()[-1] == [("t", 0, 1)]


async def test_a_callback_of_an_undo_says_nothing_of_a_later_effect() -> None:
    ledger = taken_undo()
    post = Post(said(outcome="undone"), token=write_token(UNDO, TOKEN_SECRET))
    await post.to(door(ledger))
    ledger.fold.append(  # another send of the call, which landed after its undo
        dataclasses.replace(decode(ledger.fold.entries[1].value or b""), attempt="p2")  # type: ignore[arg-type]
    )
    ledger.fold.ended("t", StepStatus.SUCCEEDED, attempt="p2")
    assert ledger.fold.phase == "TURNED"
    assert await dataclasses.replace(post, message_id="msg_2").to(door(ledger)) == 204
    assert ledger.fold.phase == "TURNED"


@pytest.mark.parametrize("token", [CALL, UNDO], ids=["call", "undo"])
async def test_what_is_said_twice_settles_once_also_by_two_doors(token: CallbackToken) -> None:
    ledger = taken_call() if token is CALL else taken_undo()
    body = said(outcome="present", output={"id": "ch_1"}) if token is CALL else said(outcome="undone")
    first, post = door(ledger), Post(body, token=write_token(token, TOKEN_SECRET))
    for _ in range(3):
        assert await post.to(first) == 204
    assert len(ledger.written) == 1
    before = ledger.fold.step("t"), ledger.fold.phase
    assert await post.to(door(ledger)) == 204
    after = ledger.fold.step("t"), ledger.fold.phase
    assert dataclasses.replace(after[0], outcome_offset=0) == dataclasses.replace(before[0], outcome_offset=0)
    assert after[1] == before[1]


# --- what is refused, and what is tried again -----------------------------------------------------------------------


@pytest.mark.parametrize("write", [Unwritten("no broker"), Uncertain("no answer")])
async def test_a_ledger_that_did_not_confirm_has_the_remote_try_again(write: Write) -> None:
    ledger = taken_call()
    app = door(ledger)
    ledger.write = write
    assert await Post(said(outcome="absent")).to(app) == 503
    ledger.write = None
    assert await Post(said(outcome="absent")).to(app) == 204
    assert len(ledger.written) == 1


async def test_a_ledger_that_cannot_be_read_has_the_remote_try_again() -> None:
    ledger = taken_call()
    ledger.unreadable = True
    assert await Post(said(outcome="present", output={"id": "ch_1"})).to(door(ledger)) == 503
    assert ledger.written == []


@pytest.mark.parametrize(
    ("post", "status"),
    [
        (Post(b"x" * 3_000), 413),
        (Post(said(outcome="absent"), method="GET"), 405),
        (Post(said(outcome="absent"), path="/"), 404),
        (Post(b"no json"), 400),
        (Post(b"[]"), 400),
        (Post(b""), 400),
        (Post(said(outcome="maybe")), 400),
        (Post(said(outcome="present", external_resource_ids=[1])), 400),
        (Post(said(outcome="undone")), 400),
        (Post(said(outcome="absent"), token=write_token(UNDO, TOKEN_SECRET)), 400),
    ],
)
async def test_what_says_nothing_is_refused_with_what_is_wrong(post: Post, status: int) -> None:
    ledger = taken_call()
    assert await post.to(door(ledger)) == status
    assert ledger.written == []


async def test_a_reader_of_ones_own_makes_answers_of_a_remotes_webhooks() -> None:
    def read(token: CallbackToken, body: bytes) -> Present | Absent:
        event = json.loads(body)
        return Present(event["data"]) if event["type"] == "charge.succeeded" else Absent(event["type"])

    ledger = taken_call()
    app = CallbackDoor(ledger, SETTINGS, read, lambda: NOW_MS)
    assert await Post(said(type="charge.succeeded", data={"id": "ch_7"})).to(app) == 204
    assert ledger.fold.step("t").undo_arguments == b'{"charge":"ch_7"}'


async def test_without_a_webhook_a_call_of_the_door_settles_the_same() -> None:
    ledger = taken_undo()
    app = door(ledger)
    await app.settle(write_token(UNDO, TOKEN_SECRET), Undone("seen in the remote's export"), "import 7")
    assert ledger.fold.phase == "COMPENSATED"
    with pytest.raises(AnswerUnfit):
        await app.settle(write_token(UNDO, TOKEN_SECRET), Present())
    with pytest.raises(AnswerUnfit):
        await app.settle(write_token(CALL, TOKEN_SECRET), NotUndone("no"))
    with pytest.raises(UnknownToken):
        await app.settle("nothing", Absent())
    ledger.write = Unwritten("no broker")
    with pytest.raises(LedgerUnavailable):
        await app.settle(write_token(CALL, TOKEN_SECRET), Absent())


async def test_the_door_opens_and_closes_with_its_server() -> None:
    incoming = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": incoming.pop(0)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])

    await door(taken_call())({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_our_own_form_has_each_answer() -> None:
    assert read_own(UNDO, said(outcome="not_undone", reason="no", retryable=False)) == NotUndone("no", retryable=False)
    assert read_own(CALL, said(outcome="present", output=1, evidence="e")) == Present(1, {}, "e")
