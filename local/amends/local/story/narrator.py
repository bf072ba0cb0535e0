"""Facts as lines for people: what the demo's time line prints of the ledger, and what it remembers of it.

Pure: records in, lines out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.schemas.codec import Record
from amends.schemas.commands import DeadLetter, Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.facts import (
    Decision,
    Resolution,
    StepEvent,
    StepStatus,
    Timeout,
    TimeoutKind,
    UndoEvent,
    UndoStatus,
    WorkflowEvent,
    WorkflowStatus,
)

CLOSED = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the time line: who, about which workflow, what."""

    who: str
    workflow_id: str
    what: str


@dataclass(slots=True)
class Narrator:
    """What was seen so far: phases of workflows, incidents, dead letters."""

    echoes: dict[str, WorkflowEcho] = field(default_factory=dict[str, WorkflowEcho])
    incidents: dict[str, Incident] = field(default_factory=dict[str, Incident])
    dead_letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    step_tools: dict[str, str] = field(default_factory=dict[str, str])
    told: set[object] = field(default_factory=set[object])

    def see(self, record: Record) -> Line | None:
        """Take a record of any of our topics; return a line if it is worth one."""
        match record:
            case StepEvent():
                self.step_tools[record.step_id] = record.tool_name
                return _of_step(record)
            case WorkflowEvent():
                return _of_workflow(record)
            case UndoEvent():
                begun = record.status is UndoStatus.STARTED
                again = begun and self._again((record.step_id, record.generation, record.attempt))
                return _of_undo(record, self.step_tools.get(record.step_id, record.tool_name), again)
            case Resolution():
                return _of_resolution(record, self.step_tools.get(record.step_id or "", "a step"))
            case Timeout():
                proposed = (record.workflow_id, record.epoch, record.kind, record.attempt, record.undo_attempt)
                if self._again(proposed):
                    return None  # a Timeout is a proposal, and is repeated until it is accepted
                return _of_timeout(record, self.step_tools.get(record.step_id or "", "a step"))
            case WorkflowEcho():
                return self._echo(record)
            case Incident():
                return self._incident(record)
            case DeadLetter():
                self.dead_letters.append(record)
                return Line("processor", record.workflow_id, f"gives up on undoing {record.tool_name}: dead letter")
            case _:
                return None

    def phase(self, workflow_id: str) -> Phase:
        """Return where a workflow stands, as far as was seen."""
        echo = self.echoes.get(workflow_id)
        return Phase.NONE if echo is None else echo.phase

    def settled(self, workflow_id: str) -> bool:
        """Whether a workflow is closed, or waits for a person."""
        return self.phase(workflow_id) in CLOSED or bool(self.open_incidents(workflow_id))

    def open_incidents(self, workflow_id: str) -> list[Incident]:
        """Return the incidents of a workflow that nobody has closed."""
        return [
            found
            for found in self.incidents.values()
            if found.workflow_id == workflow_id and found.state is IncidentState.OPEN
        ]

    def _again(self, what: object) -> bool:
        """Tell whether this was told before."""
        known = what in self.told
        self.told.add(what)
        return known

    def _echo(self, echo: WorkflowEcho) -> Line | None:
        before = self.echoes.get(echo.workflow_id)
        if before is not None and before.folded_to > echo.folded_to:
            return None
        self.echoes[echo.workflow_id] = echo
        if before is not None and before.phase is echo.phase:
            return None
        words = {
            Phase.RUNNING: "knows the workflow",
            Phase.TURNED: "turns the workflow: what it did is to be undone",
            Phase.FINISHING: "waits for open outcomes",
            Phase.SUCCEEDED: "closes it: SUCCEEDED",
            Phase.COMPENSATED: "closes it: COMPENSATED, everything is undone",
            Phase.CLOSED_WITH_LOSS: "closes it: CLOSED_WITH_LOSS",
        }
        return Line("processor", echo.workflow_id, words[echo.phase]) if echo.phase in words else None

    def _incident(self, incident: Incident) -> Line | None:
        known = self.incidents.get(incident.incident_id)
        self.incidents[incident.incident_id] = incident
        if known is not None and known.state is incident.state:
            return None
        verb = "opens an incident" if incident.state is IncidentState.OPEN else "closes the incident"
        return Line("processor", incident.workflow_id, f"{verb}: {incident.summary}")


def _of_step(fact: StepEvent) -> Line | None:
    who = str(fact.writer.value)
    match fact.status:
        case StepStatus.STARTED:
            return Line(who, fact.workflow_id, f"intends {fact.tool_name} (on the ledger before the call)")
        case StepStatus.SUCCEEDED:
            return Line(who, fact.workflow_id, f"{fact.tool_name} done")
        case StepStatus.FAILED:
            return Line(who, fact.workflow_id, f"{fact.tool_name} refused, without effect")
        case StepStatus.UNKNOWN:
            return Line(who, fact.workflow_id, f"{fact.tool_name}: outcome unknown")
        case _:
            return None


def _of_workflow(fact: WorkflowEvent) -> Line | None:
    match fact.status:
        case WorkflowStatus.STARTED:
            return Line("agent", fact.workflow_id, "begins")
        case WorkflowStatus.SUCCEEDED:
            return Line("agent", fact.workflow_id, "claims success")
        case WorkflowStatus.FAILED:
            return Line("agent", fact.workflow_id, "has failed")
        case WorkflowStatus.ROLLBACK_REQUESTED:
            return Line(str(fact.writer.value), fact.workflow_id, "asks for it to be undone")
        case _:
            return None


def _of_undo(fact: UndoEvent, tool: str, again: bool) -> Line | None:
    if again:
        # Whoever reads the ledger back and finds another's STARTED of the same attempt before its own does nothing.
        return Line("compensator", fact.workflow_id, f"meets an attempt on {tool} that another began, and leaves it")
    attempt = f", attempt {fact.attempt + 1}" if fact.attempt else ""
    words = {
        UndoStatus.STARTED: f"starts to undo {tool}{attempt}",
        UndoStatus.UNDONE: f"{tool} is undone{' (verified)' if fact.verified else ''}{_because(fact.evidence)}",
        UndoStatus.NOTHING_TO_UNDO: f"{tool}: nothing to undo",
        UndoStatus.FAILED: f"undo of {tool} failed{_because(fact.error.message if fact.error else '')}",
        UndoStatus.UNKNOWN: f"undo of {tool}: outcome unknown{_because(fact.error.message if fact.error else '')}",
        UndoStatus.RELEASED: f"lets go of {tool}, untouched",
        UndoStatus.DEFERRED: f"puts {tool} off",
    }
    return Line("compensator", fact.workflow_id, words[fact.status])


def _of_resolution(fact: Resolution, tool: str) -> Line | None:
    words = {
        Decision.PRESENT: f"asked the world: {tool} did happen{_because(fact.evidence)}",
        Decision.ABSENT: f"asked the world: {tool} did not happen{_because(fact.evidence)}",
        Decision.UNKNOWN: f"asked the world about {tool}: no answer yet",
    }
    return Line(str(fact.writer.value), fact.workflow_id, words.get(fact.decision, f"rules {fact.decision.value}"))


def _of_timeout(fact: Timeout, tool: str) -> Line | None:
    words = {
        TimeoutKind.HEARTBEAT: "has not heard of the agent for its lease",
        TimeoutKind.DEADLINE: "finds the workflow's time is up",
        TimeoutKind.STEP: f"has not heard of {tool} for its lease",
        TimeoutKind.UNDO: f"has not heard of the undo of {tool} for its lease",
        TimeoutKind.LADDER: f"has no more ways to find out about {tool}",
    }
    return Line("processor", fact.workflow_id, words[fact.kind])


def _because(why: str) -> str:
    return f": {why[:100]}" if why else ""
