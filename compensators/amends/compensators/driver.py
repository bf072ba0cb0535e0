"""Drives a decision on real parts: takes an effect, does it, sends the answer back. It decides nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from itertools import count
from typing import Any

from amends.compensators.clock import lease_clock_ms
from amends.compensators.effects import (
    AskProbe,
    AskVerify,
    CallForward,
    CallUndo,
    Claim,
    Effect,
    ReadBack,
    ReadClock,
    Renew,
    Report,
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
from amends.kafka.publisher import Publisher
from amends.schemas.codec import encode
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

    async def play(self, steps: Steps[Report]) -> Report:
        """Drive to the end. Cancelled, it leaves things as a crash would."""
        answer: Any = None
        try:
            while True:
                answer = await self._do(steps.send(answer))
        except StopIteration as stop:
            report: Report = stop.value
            return report
        finally:
            steps.close()

    async def _do(self, effect: Effect) -> object:
        match effect:
            case Claim(requests=requests):
                return await self._registry.claim(requests)
            case Renew():
                return await self._registry.renew(effect.key, effect.attempt, effect.fence, effect.lease_ms)
            case Settle():
                return await self._registry.settle(
                    effect.key, effect.attempt, effect.fence, effect.state, effect.closing
                )
            case Write(facts=(fact,)):
                return (await self._write(fact),)
            case Write(facts=facts):
                return tuple(await asyncio.gather(*(self._write(fact) for fact in facts)))
            case ReadBack(from_offset=from_offset, to_offset=to_offset):
                return await self._reader.read_back(from_offset, to_offset)
            case ReadClock():
                return lease_clock_ms()
            case CallUndo():
                return await self._handlers.call_undo(effect, self._reader)
            case AskVerify():
                return await self._handlers.ask_verify(effect, self._reader)
            case AskProbe():
                return await self._handlers.ask_probe(effect, self._reader)
            case CallForward():
                return await self._handlers.call_forward(effect, self._reader)
            case Wait(duration_ms=duration_ms):
                await asyncio.sleep(duration_ms / 1000)
                return None

    async def _write(self, fact: Fact) -> Written | Unwritten:
        now_ms = int(time.time() * 1000)
        stamped = replace(fact, timestamp_ms=now_ms)
        headers = headers_of(stamped, source=self._source, event_id=f"{_EVENTS}{next(_numbers)}", time_ms=now_ms)
        try:
            ack = await self._publisher.publish(
                self._ledger, key=self._key, value=encode(stamped), headers=headers, partition=self._partition
            )
        except WriteError as error:
            return Unwritten(certain=isinstance(error, NotWritten))
        return Written(ack.offset)
