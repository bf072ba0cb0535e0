"""Admission: which of the commands that workflows call for are sent now, and who waits for what.

The plan of a workflow bounds what it has under way itself (`runs`). This bounds what all workflows of a partition have
under way together: by lane and by tool (`gates`), and by the breaker of a tool (`breakers`). It holds commands back and
changes nothing else: facts are folded, workflows turn and are told of it all the same. A command that is held back
costs an entry in a queue, and nothing until its turn comes.

Only breakers are kept. Places follow from state, but for what was commanded and had not begun when the partition was
taken over: that is commanded again, and takes its place then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from amends.processors import breakers, records
from amends.processors.breakers import Breaker
from amends.processors.gates import Gate, Rate, Turn
from amends.processors.slots import Slot
from amends.processors.state import CLOSED_UNDO, Step, Undo, UndoState
from amends.processors.terms import Terms
from amends.processors.workflow import Workflow
from amends.schemas.commands import Command, Incident, UndoCommand, UndoEntry
from amends.schemas.contract import Contract, UndoTerms, lane_of
from amends.schemas.facts import CHANGED_SINCE, Fact, UndoEvent

ERROR_CHARACTERS = 500


class Place(NamedTuple):
    """What an undo has taken: of its tool and of its lane."""

    number: int  # of the step
    generation: int
    attempt: int
    tool: Gate
    lane: Gate


class Admission:
    """Of one partition."""

    def __init__(self, terms: Terms, partition: int) -> None:
        self._terms = terms
        self._partition = partition
        self._tools: dict[str, Gate] = {}
        self._lanes: dict[str, Gate] = {}
        self._held: dict[Slot, list[list[Place]]] = {}
        """Of each run that was commanded, the places it still has."""
        self._crowded: dict[Gate, None] = {}
        """Gates at which somebody waits, and perhaps some at which nobody does any more."""
        self._changed: dict[Gate, None] = {}
        """Tools whose breaker is to be written."""
        self._watched: dict[Gate, None] = {}
        """Tools of which people are to be told something, sooner or later."""

    # --- breakers ---------------------------------------------------------------------------------------------------

    def restore(self, tool: str, value: bytes | None) -> None:
        """Take a breaker from the changelog."""
        if value is not None:
            self._with_breaker(self._tool(tool, None), breakers.decode_breaker(value))

    def ended(self, slot: Slot, before: Step, after: Step, contract: Contract | None, fact: Fact, at_ms: int) -> None:
        """An undo changed: see whether that speaks for or against its tool."""
        undo, was = after.undo, before.undo or Undo()
        if undo is None or undo is before.undo or contract is None:
            return
        if undo.spent > was.spent:
            if isinstance(fact, UndoEvent) and fact.error is not None and fact.error.type == CHANGED_SINCE:
                return
            gate, error = self._tool(after.tool_name, contract), undo.last_error[:ERROR_CHARACTERS]
            name, terms = slot.key.decode(), gate.breaker_terms
            found = breakers.failed(gate.breaker, name, was.opened_at_ms, at_ms, error, terms)
            self._set_breaker(gate, found)
        elif undo.state in CLOSED_UNDO and was.state is UndoState.OPEN and isinstance(fact, UndoEvent):
            gate = self._tool(after.tool_name, contract)
            self._set_breaker(gate, breakers.closed(gate.breaker, at_ms))

    def mended(self, tool: str, by: str, at_ms: int) -> None:
        """A person says that a tool works again."""
        gate = self._tools.get(tool)
        if gate is not None:
            self._set_breaker(gate, breakers.mended(gate.breaker, by, at_ms))

    def breaker(self, tool: str) -> Breaker:
        """Return the breaker of a tool, for tests and inspection."""
        return self._tool(tool, None).breaker

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the changelog records of the breakers that changed since the last call."""
        changed, self._changed = self._changed, {}
        for gate in changed:
            yield records.BREAKER_PREFIX + gate.name.encode(), breakers.encode_breaker(gate.breaker)

    def incidents(self, now_ms: int) -> list[Incident]:
        """Return what people are to be told now, once."""
        made: list[Incident] = []
        for gate in list(self._watched):
            at_ms = breakers.tells_at_ms(gate.breaker, self._terms.breaker)
            if at_ms is None:
                del self._watched[gate]
            elif at_ms <= now_ms:
                waiting, lane = len(gate.queue), gate.lane
                made.append(breakers.incident_of(gate.name, lane, gate.breaker, waiting, self._partition, now_ms))
                self._with_breaker(gate, breakers.told(gate.breaker))
                self._changed[gate] = None
        return made

    def _set_breaker(self, gate: Gate, breaker: Breaker) -> None:
        if breaker is gate.breaker:
            return
        if gate.breaker.is_open and not breaker.is_open:
            gate.mended()
        self._with_breaker(gate, breaker)
        self._changed[gate] = None

    def _with_breaker(self, gate: Gate, breaker: Breaker) -> None:
        gate.breaker = breaker
        if breaker.is_open or breaker.announced:
            self._watched[gate] = None

    # --- places -----------------------------------------------------------------------------------------------------

    def look(self, slot: Slot, workflow: Workflow) -> None:
        """Bring the places of a workflow up to date with its state."""
        held = self._held.get(slot)
        if held is None:
            if workflow.undoing:
                self._found_open(slot, workflow, [])
            return
        kept: list[list[Place]] = []
        for run in held:
            left = self._left(slot, workflow, run)
            if left:
                kept.append(left)
        if kept:
            self._held[slot] = kept
        else:
            del self._held[slot]
        if workflow.undoing:
            self._found_open(slot, workflow, kept)

    def _left(self, slot: Slot, workflow: Workflow, run: list[Place]) -> list[Place]:
        """Give back the places of what ended; those of a whole run that stopped, but for what has begun."""
        left: list[Place] = []
        stopped = False
        for place in run:
            undo = workflow.steps[place.number].undo or Undo()
            if undo.state in CLOSED_UNDO:
                self._give_back(slot, place, took=True)
            elif (undo.generation, undo.attempt) != place[1:3] or undo.state is UndoState.DEAD:
                self._give_back(slot, place, took=False)
                stopped = True
            else:
                left.append(place)
        if not stopped:
            return left
        for place in left:
            if place.number not in workflow.undoing:
                self._give_back(slot, place, took=False)
        return [place for place in left if place.number in workflow.undoing]

    def _found_open(self, slot: Slot, workflow: Workflow, held: list[list[Place]]) -> None:
        """Undos that are open have their place, whoever commanded them."""
        known = {place.number for run in held for place in run}
        for number in workflow.undoing:
            if number not in known:
                step = workflow.steps[number]
                contract, undo = workflow.contract_of(step), step.undo
                if contract is not None and undo is not None:
                    lane = self._lane(lane_of(contract))
                    place = Place(number, undo.generation, undo.attempt, self._tool(step.tool_name, contract), lane)
                    self._take(slot, [place])

    def drop(self, slot: Slot) -> None:
        """A workflow is held no longer."""
        for run in self._held.pop(slot, ()):
            for place in run:
                self._give_back(slot, place, took=False)
        for gate in self._crowded:
            gate.queue.discard(slot)

    def _take(self, slot: Slot, places: list[Place]) -> None:
        self._held.setdefault(slot, []).append(places)
        for place in places:
            place.tool.take()
            place.lane.take()

    def _give_back(self, slot: Slot, place: Place, *, took: bool) -> None:
        place.tool.give_back(took=took)
        place.lane.give_back(took=took)
        if place.tool.probe == (slot, place.number):
            place.tool.probe = place.tool.put_off = None

    # --- commands ---------------------------------------------------------------------------------------------------

    def admit(
        self,
        slot: Slot,
        workflow: Workflow,
        commands: Sequence[Command],
        fresh: Mapping[tuple[object, ...], int],
        now_ms: int,
    ) -> list[Command]:
        """Return the commands that may be sent now, cut to what may; for the others the workflow waits.

        Args:
            fresh: until when what was commanded need not be again, by step, generation and attempt.
        """
        admitted: list[Command] = []
        looked = False
        for command in commands:
            if isinstance(command, UndoCommand) and command.lane in self._terms.lanes:
                head = command.entries[0]
                if fresh.get((head.step_id, head.generation, head.attempt), 0) <= now_ms:
                    if not looked and slot in self._held:
                        self._give_up_waiting(slot, workflow, commands)
                    looked = True
                    places = self._places_for(slot, workflow, command, now_ms)
                    if not places:
                        continue
                    if len(places) < len(command.entries):
                        entries = command.entries[: len(places)]
                        at_once = command.at_once and len(entries) > 1
                        command = dataclasses.replace(command, entries=entries, at_once=at_once)
            admitted.append(command)
        return admitted

    def _places_for(self, slot: Slot, workflow: Workflow, command: UndoCommand, now_ms: int) -> list[Place]:
        """Take a place for each undo of a run that may be commanded now; none: the workflow waits at a gate."""
        before = self._before(slot, workflow.by_id[command.entries[0].step_id])
        asked = {workflow.by_id[member.step_id] for member in command.entries}
        begun_of_run = [p for p in before or () if p.number in workflow.undoing and p.number not in asked]
        header = workflow.header
        turn = (header.turns[-1].at_ms if header.turns else header.turned_at_ms, header.started_offset)
        lane = self._lane(command.lane)
        has_place = before is not None and not begun_of_run  # one after another is what a run has its places for
        if not self._passes(lane, slot, turn, now_ms, None, has_place=has_place):
            return []
        places: list[Place] = []
        begun: dict[Gate, int] = {}
        for member in command.entries:
            place = self._place_of(workflow, member, lane)
            gate = place.tool
            if not places:
                mine = (slot, place.number)
                if not self._passes(gate, slot, turn, now_ms, mine, has_place=has_place):
                    return []
            elif not _goes_on(gate, begun.get(gate, 0), now_ms):
                break
            begun[gate] = begun.get(gate, 0) + 1
            places.append(place)
            if gate.breaker.is_open:
                gate.probe, gate.put_off = (slot, place.number), None
                break
        if before is not None:
            self._held[slot].remove(before)
            for place in before:
                if place not in begun_of_run:
                    place.tool.taken -= 1
                    place.lane.taken -= 1
            if begun_of_run:
                self._held[slot].append(begun_of_run)
        self._take(slot, places)
        return places

    def _give_up_waiting(self, slot: Slot, workflow: Workflow, commands: Sequence[Command]) -> None:
        """Give back the places of a run that has not begun, and with which nothing begins any more: what must be undone
        before it since then (it was retried, it came to light) would wait for them, and they for it."""
        begins = {
            workflow.by_id[c.entries[0].step_id] for c in commands if isinstance(c, UndoCommand)
        } | workflow.undoing
        kept: list[list[Place]] = []
        for run in self._held.pop(slot):
            if begins.isdisjoint(place.number for place in run):
                for place in run:
                    self._give_back(slot, place, took=False)
            else:
                kept.append(run)
        if kept:
            self._held[slot] = kept

    def _before(self, slot: Slot, number: int) -> list[Place] | None:
        """Return the run in which an undo was commanded before."""
        for run in self._held.get(slot, ()):
            if any(place.number == number for place in run):
                return run
        return None

    def _passes(
        self, gate: Gate, slot: Slot, turn: Turn, now_ms: int, mine: tuple[Slot, int] | None, *, has_place: bool
    ) -> bool:
        """Whether a workflow may go through a gate now; if not, it waits there."""
        free = gate.lets_through(now_ms, mine, has_place=has_place)
        if free and (has_place or gate.is_turn_of(slot, turn)):
            gate.queue.discard(slot)
            return True
        if mine is not None and mine == gate.probe:
            gate.put_off = mine
        gate.queue.add(slot, turn)
        self._crowded[gate] = None
        return False

    def _place_of(self, workflow: Workflow, member: UndoEntry, lane: Gate) -> Place:
        step = workflow.steps[workflow.by_id[member.step_id]]
        tool = self._tool(step.tool_name, workflow.contract_of(step))
        return Place(step.number, member.generation, member.attempt, tool, lane)

    # --- who waits --------------------------------------------------------------------------------------------------

    def next_turn(self, now_ms: int) -> Slot | None:
        """Return a workflow that waited and may go on now; None if there is none any more."""
        if not self._crowded:
            return None
        for gate in list(self._crowded):
            if not gate.queue:
                del self._crowded[gate]
            elif gate.calls(now_ms):
                return gate.call()
        return None

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when time alone lets somebody go on, or people are to be told something; None if it never does."""
        due = [gate.next_ms(now_ms) for gate in self._crowded]
        due.extend(breakers.tells_at_ms(gate.breaker, self._terms.breaker) for gate in self._watched)
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def waiting(self) -> int:
        """Return how many workflows wait at gates; one that waits at two counts twice."""
        return sum(len(gate.queue) for gate in self._crowded)

    def under_way(self, tool: str) -> int:
        """Return how many undos of a tool are commanded and have not ended."""
        return self._tool(tool, None).taken

    # --- gates ------------------------------------------------------------------------------------------------------

    def _lane(self, name: str) -> Gate:
        gate = self._lanes.get(name)
        if gate is None:
            gate = self._lanes[name] = Gate(name, self._terms.share(self._terms.lane_undos_max))
        return gate

    def _tool(self, name: str, contract: Contract | None) -> Gate:
        """Return the gate of a tool, with the bounds of the contract that was seen last."""
        gate = self._tools.get(name)
        if gate is None:
            gate = self._tools[name] = Gate(name, 0)
            self._bound(gate, None)
        if contract is not None and contract.undo is not gate.terms:
            self._bound(gate, contract.undo)
        return gate

    def _bound(self, gate: Gate, undo: UndoTerms | None) -> None:
        """Take the bounds of a contract, and where it has none those that the processor was told."""
        terms = self._terms
        own = undo or UndoTerms(handler="", lane="")
        gate.terms, gate.lane = undo, own.lane
        gate.places = terms.share(terms.tool_undos_max if own.undos_max is None else own.undos_max)
        failures = terms.breaker.failures if own.breaker_failures is None else own.breaker_failures
        gate.breaker_terms = dataclasses.replace(terms.breaker, failures=failures)
        gate.grows = failures > 0
        per_minute = terms.tool_undos_per_minute if own.undos_per_minute is None else own.undos_per_minute
        per_s = None if per_minute is None else per_minute / 60 / terms.partitions
        if per_s is None:
            gate.rate = None
        elif gate.rate is None or gate.rate.per_s != per_s:
            gate.rate = Rate(per_s)


def _goes_on(gate: Gate, begun: int, now_ms: int) -> bool:
    """Whether a run goes on with an undo of a tool of which it begins `begun` already. A run that began is not cut for
    want of places, only where the breaker or the rate says so."""
    if gate.breaker.is_open:
        return False
    if not begun:
        return gate.lets_through(now_ms, None, has_place=False)
    return gate.rate is None or gate.rate.available(now_ms) > begun
