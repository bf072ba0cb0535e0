"""Drives a decision on real parts: takes an effect, does it, sends the answer back. It decides nothing.

Settlements are not waited for one by one: the registry is a gate and its answer changes nothing, so a run goes on while
they are under way. They are over before the decision is, and with it before the command may be committed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from itertools import count
from typing import Any

from amends.compensators.clock import lease_clock_ms
from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    AwaitSent,
    CallForward,
    CallUndo,
    Claim,
    Compare,
    Effect,
    ReadBack,
    ReadClock,
    ReadWallClock,
    Renew,
    Report,
    Send,
    Settle,
    Steps,
    Unwritten,
    Wait,
    Write,
    Written,
)
from amends.compensators.handlers import Handlers
from amends.compensators.read_back import WorkflowReader
from amends.compensators.registry import Registry
from amends.kafka.errors import NotWritten, WriteError
from amends.kafka.publisher import Begun, Publisher
from amends.kafka.records import Ack, Outgoing
from amends.schemas.codec import encode_value
from amends.schemas.envelope import headers_of
from amends.schemas.facts import Fact

_EVENTS = f"{uuid.uuid4().hex[:16]}-"
_numbers = count()


class Driver:
    """Carries out decisions for one workflow's key on one partition."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        registry: Registry,
        handlers: Handlers,
        reader: WorkflowReader,
        ledger: str,
        partition: int,
        key: bytes,
        source: str,
    ) -> None:
        self._publisher = publisher
        self._registry = registry
        self._handlers = handlers
        self._reader = reader
        self._ledger = ledger
        self._partition = partition
        self._key = key
        self._source = source
        self._settling: list[asyncio.Future[bool]] = []
        self._sent: list[Begun] = []

    async def play(self, steps: Steps[Report]) -> Report:
        """Drive to the end. Cancelled, it leaves things as a crash would."""
        answer: Any = None
        try:
            while True:
                effect = steps.send(answer)
                if type(effect) is Settle:
                    self._settling.append(self._settle(effect))
                    answer = True
                elif type(effect) is ReadClock:
                    answer = lease_clock_ms()
                elif type(effect) is Send:
                    self._send(effect.facts)
                    answer = None
                else:
                    answer = await self._do(effect)
        except StopIteration as stop:
            report: Report = stop.value
            for settlement in self._settling:
                await settlement
            return report
        finally:
            steps.close()
            for settlement in self._settling:
                settlement.cancel()  # those that are over take no notice
            for _, future in self._sent:
                future.cancel()

    async def _do(self, effect: Effect) -> object:
        match effect:
            case Claim(requests=requests):
                return await self._registry.claim(requests)
            case Renew():
                return await self._registry.renew(
                    effect.key, effect.attempt, effect.fence, effect.lease_ms, effect.group
                )
            case Settle():
                return await self._settle(effect)
            case Write(facts=facts):
                return tuple(map(_written, await self._publisher.publish_each(self._outgoing_each(facts))))
            case Send(facts=facts):
                self._send(facts)
                return None
            case AwaitSent():
                return await self._answered()
            case ReadBack(from_offset=from_offset, to_offset=to_offset):
                return await self._reader.read_back(from_offset, to_offset)
            case ReadClock():
                return lease_clock_ms()
            case ReadWallClock():
                return int(time.time() * 1000)
            case CallUndo():
                return await self._handlers.call_undo(effect, self._reader)
            case AskVerify():
                return await self._handlers.ask_verify(effect, self._reader)
            case Compare():
                return await self._handlers.compare(effect, self._reader)
            case AskProbe():
                return await self._handlers.ask_probe(effect, self._reader)
            case CallForward():
                return await self._handlers.call_forward(effect, self._reader)
            case Wait(duration_ms=duration_ms):
                await asyncio.sleep(duration_ms / 1000)
                return None

    def _settle(self, effect: Settle) -> asyncio.Future[bool]:
        settled = self._registry.settle(
            effect.key, effect.attempt, effect.fence, effect.state, effect.closing, effect.group
        )
        return asyncio.ensure_future(settled)

    def _send(self, facts: tuple[Fact, ...]) -> None:
        self._sent += self._publisher.begin(self._outgoing_each(facts))

    async def _answered(self) -> tuple[Written | Unwritten, ...]:
        sent, self._sent = self._sent, []
        return tuple(map(_written, await self._publisher.answers(sent)))

    def _outgoing_each(self, facts: tuple[Fact, ...]) -> list[Outgoing]:
        now_ms = int(time.time() * 1000)
        return [self._outgoing(fact, now_ms) for fact in facts]

    def _outgoing(self, fact: Fact, now_ms: int) -> Outgoing:
        headers = headers_of(fact, source=self._source, event_id=f"{_EVENTS}{next(_numbers)}", time_ms=now_ms)
        return Outgoing(self._ledger, self._key, encode_value(fact, now_ms), self._partition, headers)


def _written(answer: Ack | WriteError) -> Written | Unwritten:
    return Written(answer.offset) if isinstance(answer, Ack) else Unwritten(certain=isinstance(answer, NotWritten))
