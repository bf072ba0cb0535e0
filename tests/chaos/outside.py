"""The outside world: remotes with a record of their own, which is the judge. They know nothing of amends.

`keyed` takes keys: calls of one key are one effect, undos of one key one undo. `natural` takes keys for the call; its
undo removes what is there, and does nothing where nothing is. `plain` and `blind` take no keys: each call is an effect,
each undo an undo. `keyed` and `plain` can be asked whether a call happened, `natural` and `plain` whether something
stands, `blind` about nothing. What `final` does nothing takes back, and it can't be asked. `record` is one value that
is written and written back, as `natural` takes calls and undos, and can be read.

They are slow at times, answer too late, not at all, or with an error, as chance says. A request that has arrived is
carried out whether or not its sender lives. No effect is later than `LATEST_S` after its request.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.chaos.proxy import Loop

LATEST_S = 0.8
NATURAL = ("natural", "record")
"""Kinds whose undo does nothing where nothing is."""
ANSWERS_LATE_S = 5.0  # later than every short lease


class Act(StrEnum):
    """What a remote can be asked."""

    DO = "do"
    UNDO = "undo"
    IS_DONE = "is done?"
    IS_UNDONE = "is undone?"


class Mood(StrEnum):
    """How a remote treats one request."""

    WELL = "well"
    SLOW = "slow"
    LATE = "answers late"
    SILENT = "cuts the connection after the effect"
    GONE = "cuts the connection before the effect"
    ERROR = "answers that it did nothing"


MOODS: Mapping[Mood, int] = {Mood.WELL: 86, Mood.SLOW: 4, Mood.LATE: 2, Mood.SILENT: 3, Mood.GONE: 3, Mood.ERROR: 2}
QUESTIONS = (Act.IS_DONE, Act.IS_UNDONE)


@dataclass(slots=True)
class Effect:
    """Something that was made for a workflow."""

    identity: str
    kind: str
    key: str
    made_serial: int
    undone_serials: list[int] = field(default_factory=list[int])
    undo_keys: set[str] = field(default_factory=set[str])

    @property
    def stands(self) -> bool:
        return not self.undone_serials


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the record."""

    serial: int
    at_s: float
    workflow: str
    kind: str
    act: Act
    key: str
    mood: Mood
    what: str

    def __str__(self) -> str:
        mood = "" if self.mood is Mood.WELL else f" ({self.mood})"
        return f"{self.serial:6} {self.at_s:8.2f} s  {self.act} {self.kind} key={self.key or '-'}: {self.what}{mood}"


class Outside:
    """The remotes, behind one port. What they did is in `effects` and `record`, by workflow."""

    def __init__(self, seed: int, begun_s: float, loop: Loop) -> None:
        self.effects: dict[str, list[Effect]] = defaultdict(list)
        self.record: dict[str, list[Entry]] = defaultdict(list)
        self.asked = 0
        self.down = False
        self.slow = False
        self._seed = seed
        self._begun_s = begun_s
        self._serial = 0
        self._counts: Counter[tuple[str, str, Act]] = Counter()
        self._server = loop.serve(self._serve())
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._answer, "127.0.0.1", 0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if not line.endswith(b"\n") or self.down:
                writer.transport.abort()
                return
            answer = await self._treat(json.loads(line))
            if answer is None:
                writer.transport.abort()
                return
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # the caller is gone; what it asked for was done all the same
        finally:
            writer.close()

    async def _treat(self, request: dict[str, str]) -> dict[str, Any] | None:
        workflow, kind, act, key = request["workflow"], request["kind"], Act(request["act"]), request["key"]
        self.asked += 1
        self._counts[workflow, kind, act] += 1
        chance = random.Random(f"{self._seed} {workflow} {kind} {act} {self._counts[workflow, kind, act]}")
        mood = chance.choices(tuple(MOODS), tuple(MOODS.values()))[0]
        if self.slow and mood is Mood.WELL:
            mood = Mood.SLOW
        slow = mood is Mood.SLOW
        await asyncio.sleep(chance.uniform(LATEST_S / 2, LATEST_S) if slow else chance.uniform(0, 0.03))
        if mood is Mood.ERROR:
            self._note(workflow, kind, act, key, mood, "refused")
            return {"error": "unavailable"}
        if mood is Mood.GONE:
            self._note(workflow, kind, act, key, mood, "nothing")
            return None
        answer = self._carry_out(workflow, kind, act, key, mood)
        if mood is Mood.LATE:
            await asyncio.sleep(ANSWERS_LATE_S)
        return None if mood is Mood.SILENT else answer

    def _carry_out(self, workflow: str, kind: str, act: Act, key: str, mood: Mood) -> dict[str, Any]:
        known = [effect for effect in self.effects[workflow] if effect.kind == kind]
        match act:
            case Act.DO:
                return self._do(workflow, kind, key, mood, known)
            case Act.UNDO:
                return self._undo(workflow, kind, key, mood, known)
            case Act.IS_DONE:
                # `key` is of the call that is asked about: a remote that takes none has it as a customer's reference.
                found = next((effect.identity for effect in known if effect.key == key), None)
                return {"effect": found}
            case Act.IS_UNDONE:
                return {"undone": all(not effect.stands for effect in known), "any": bool(known)}

    def _do(self, workflow: str, kind: str, key: str, mood: Mood, known: list[Effect]) -> dict[str, Any]:
        repeated = next((effect for effect in known if kind in ("keyed", *NATURAL) and effect.key == key), None)
        if repeated is not None:
            self._note(workflow, kind, Act.DO, key, mood, f"{repeated.identity} was made before")
            return {"effect": repeated.identity}
        serial = self._note(workflow, kind, Act.DO, key, mood, f"makes {kind}-{len(known)}")
        self.effects[workflow].append(Effect(f"{kind}-{len(known)}", kind, key, serial))
        return {"effect": f"{kind}-{len(known)}"}

    def _undo(self, workflow: str, kind: str, key: str, mood: Mood, known: list[Effect]) -> dict[str, Any]:
        standing = [effect for effect in known if effect.stands]
        if kind == "keyed" and any(key in effect.undo_keys for effect in known):
            self._note(workflow, kind, Act.UNDO, key, mood, "was undone with this key before")
            return {"undone": True}
        if not known or (kind in NATURAL and not standing):
            self._note(workflow, kind, Act.UNDO, key, mood, "nothing is there")
            return {"undone": False}
        effect = (standing or known)[-1]
        again = "" if standing else " AGAIN"
        effect.undone_serials.append(
            self._note(workflow, kind, Act.UNDO, key, mood, f"undoes {effect.identity}{again}")
        )
        effect.undo_keys.add(key)
        return {"undone": True}

    def _note(self, workflow: str, kind: str, act: Act, key: str, mood: Mood, what: str) -> int:
        self._serial += 1
        at_s = time.monotonic() - self._begun_s
        self.record[workflow].append(Entry(self._serial, at_s, workflow, kind, act, key, mood, what))
        return self._serial
