"""The door for callbacks: `POST /callbacks/<token>`, by which a remote's webhook settles a call or an undo.

An ASGI application without a framework; any ASGI server runs it:
`uvicorn --factory amends.producers.callbacks:from_environment`. What the remote sends is signed as Standard Webhooks
has it; the token in the path says of which attempt it speaks. The answer is on the ledger before the remote is told
that it was taken, so a remote that tries again until then loses nothing, and one that says a thing twice changes
nothing.

    204  taken, or taken before, or nothing that settles anything
    400  the body says nothing that can be read      404  no token of ours        405  only POST
    401  the signature or its time is wrong          413  the body is too large   503  the ledger is away: try again
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, cast

from amends.producers import webhooks
from amends.producers.callback_settings import CallbackSettings
from amends.producers.effects import Acknowledged, Write
from amends.producers.ledger import History
from amends.producers.settling import AnswerUnfit, CallbackAnswer, fact_of
from amends.schemas.facts import Resolution, StepEvent, StepStatus, UndoEvent
from amends.tools.answers import Absent, NotUndone, Present, Undone
from amends.tools.callbacks import PATH, CallbackToken, UnknownToken, read_token
from amends.tools.errors import LedgerUnavailable

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reading = Callable[[CallbackToken, bytes], CallbackAnswer]

SEEN_MAX = 10_000
RETRY_AFTER_S = b"5"


class CallbackLedger(Protocol):
    """What the door needs of a ledger. Kept by `kafka_ledger.KafkaLedger`."""

    async def write_async(self, fact: Resolution | UndoEvent, /) -> Write: ...

    def history(self, workflow_id: str, from_offset: int, to_offset: int) -> History: ...

    def close(self) -> None: ...


class BodyUnreadable(ValueError):  # noqa: N818 - what it is
    """The body of a webhook says nothing that can be read."""


def read_own(token: CallbackToken, body: bytes) -> CallbackAnswer:
    """Read a webhook in our own form, for remotes that can be told what to send.

    Of a call: `{"outcome": "present", "output": …, "external_resource_ids": {…}}` or `{"outcome": "absent"}`; of an
    undo: `{"outcome": "undone"}` or `{"outcome": "not_undone", "reason": "…", "retryable": true}`. Each may have
    `evidence`.

    Raises:
        BodyUnreadable: it is something else.
    """
    try:
        found = json.loads(body)
    except ValueError as error:
        raise BodyUnreadable("the body is no JSON") from error
    said: Mapping[str, Any] = cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
    evidence = str(said.get("evidence", ""))
    match said.get("outcome"):
        case "present":
            ids = said.get("external_resource_ids") or {}
            if not isinstance(ids, dict):
                raise BodyUnreadable("external_resource_ids is no object")
            return Present(said.get("output"), cast("dict[str, str]", ids), evidence)
        case "absent":
            return Absent(evidence)
        case "undone":
            return Undone(evidence)
        case "not_undone":
            return NotUndone(str(said.get("reason", "the remote says so")), said.get("retryable") is not False)
        case _:
            raise BodyUnreadable("outcome is none of present, absent, undone, not_undone")


class CallbackDoor:
    """The application. One per process, in one event loop.

    Args:
        read: makes an answer of a remote's own webhook; raises a ValueError (BodyUnreadable) for one it can't read.
    """

    def __init__(
        self,
        ledger: CallbackLedger,
        settings: CallbackSettings,
        read: Reading = read_own,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._read = read
        self._now_ms = now_ms
        self._token_secrets = [secret.get_secret_value() for secret in settings.token_secrets]
        self._signing_secrets = [secret.get_secret_value() for secret in settings.signing_secrets]
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status = await self._answer(scope, receive)
            await _respond(send, status)

    async def settle(self, token: str, answer: CallbackAnswer, by: str = "a callback") -> None:
        """Settle the attempt that a token names, without a webhook: on return it is on the ledger.

        Raises:
            UnknownToken, AnswerUnfit: nothing was written.
            LedgerUnavailable: it may not have been written; do it again.
        """
        await self._settle(read_token(token, self._token_secrets), answer, by)

    # --- one request ------------------------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive) -> int:
        path = str(scope["path"])
        if PATH not in path:
            return 404
        if scope["method"] != "POST":
            return 405
        body = await _body(receive, self._settings.body_bytes_max)
        if body is None:
            return 413
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            message_id = webhooks.verify(
                headers, body, self._signing_secrets, self._now_ms(), self._settings.tolerance_ms
            )
        except webhooks.SignatureWrong as error:
            log.warning("a callback was refused: %s", error)
            return 401
        text = path.rpartition(PATH)[2]
        if (text, message_id) in self._seen:
            return 204
        return await self._take(text, message_id, body)

    async def _take(self, text: str, message_id: str, body: bytes) -> int:
        try:
            token = read_token(text, self._token_secrets)
        except UnknownToken as error:
            log.warning("callback %r was refused: %s", message_id, error)
            return 404
        try:
            answer = self._read(token, body)
            await self._settle(token, answer, f"callback {message_id}")
        except LedgerUnavailable as error:
            log.warning("callback %r could not be taken: %s", message_id, error)
            return 503
        except ValueError as error:  # AnswerUnfit and BodyUnreadable among them
            # Of a reader's own error only the kind: its words may have a part of the body.
            said = str(error) if isinstance(error, AnswerUnfit | BodyUnreadable) else type(error).__name__
            log.warning("callback %r for step %s can't be read: %s", message_id, token.step_id, said)
            return 400
        self._remember(text, message_id)
        return 204

    async def _settle(self, token: CallbackToken, answer: CallbackAnswer, by: str) -> None:
        wanted = isinstance(answer, Present) and token.started_offset >= 0
        started = await asyncio.to_thread(self._started, token) if wanted else None
        fact = fact_of(token, answer, started, by)
        if fact is None:
            return
        write = await self._ledger.write_async(fact)
        if not isinstance(write, Acknowledged):
            raise LedgerUnavailable(f"what the callback says of step {token.step_id} was not confirmed by the ledger.")

    def _started(self, token: CallbackToken) -> StepEvent | None:
        """The step's STARTED; None where the ledger no longer holds it. Raises LedgerUnavailable."""
        for _, fact in self._ledger.history(token.workflow_id, token.started_offset, token.started_offset):
            if isinstance(fact, StepEvent) and fact.status is StepStatus.STARTED and fact.step_id == token.step_id:
                return fact
        return None

    def _remember(self, text: str, message_id: str) -> None:
        self._seen[text, message_id] = None
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self._ledger.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _body(receive: Receive, bytes_max: int) -> bytes | None:
    """Return the whole body, None if it is larger."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part = cast("bytes", message.get("body", b""))
        size += len(part)
        if size > bytes_max:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _respond(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0")]
    if status == 503:
        headers.append((b"retry-after", RETRY_AFTER_S))
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def from_environment(read: Reading = read_own) -> CallbackDoor:
    """Return the door with the settings of the environment, on the Kafka of the environment.

    Raises:
        SettingsWrong: a setting is unknown, missing or does not fit.
    """
    from amends.producers.callback_start import door_from_environment  # the Kafka client only where it is needed

    return door_from_environment(read)
