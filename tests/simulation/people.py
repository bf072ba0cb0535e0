"""A person who looks at incidents now and then, asks the world, and rules rightly, if sometimes twice or too late."""

from __future__ import annotations

from random import Random

from tests.simulation.decoding import decoded
from tests.simulation.lives import Belief
from tests.simulation.pipeline import Pipeline
from tests.simulation.schedule import Process
from tests.simulation.world import APPROVAL_MS, Deed

from amends.console.read_model import Latest, WorkflowFilter
from amends.console.undoing import UNDOABLE, Request, fact_of, subject_of
from amends.processors.memory import StoredRecord
from amends.schemas.approvals import TROUBLE
from amends.schemas.commands import Incident, IncidentState, WorkflowEcho
from amends.schemas.decisions import decisions_for
from amends.schemas.facts import Decision, Party, Resolution, WorkflowEvent, WorkflowStatus
from amends.schemas.keys import forward_key
from amends.schemas.payload import encode_payload

LOOKS_AFTER_MS = 4_000
RULED_ON = frozenset({"undo_failed", "irreversible", "unknown", "window_closed", "changed_since", "arguments_missing"})

EDITED_BY = "by"
"""Argument that says who gave them: a remote has no eye for it."""


class Person(Process):
    """Decides on incidents of undos, `LOOKS_AFTER_MS` after they opened: whatever was under way has landed by then."""

    def __init__(self, pipeline: Pipeline, beliefs: dict[str, Belief]) -> None:
        super().__init__("person", "alice")
        self._pipeline = pipeline
        self._beliefs = beliefs

    def start(self) -> None:
        pipeline = self._pipeline
        pipeline.broker.listeners.setdefault(pipeline.topics.incidents, []).append(self._came)
        if pipeline.chance.random() < 0.6:
            workflow_id = pipeline.chance.choice(list(self._beliefs))
            pipeline.schedule.after(
                pipeline.chance.randint(10, pipeline.chance.choice((100, 250, 8_000))), lambda: self._ask(workflow_id)
            )

    def _ask(self, workflow_id: str) -> None:
        fact = WorkflowEvent(
            workflow_id, 0, WorkflowStatus.ROLLBACK_REQUESTED, writer=Party.PERSON, by="alice", reason="wrong order"
        )
        if self._beliefs[workflow_id].processes:
            self._pipeline.write(self, fact, lambda told: None)

    def _came(self, record: StoredRecord) -> None:
        incident = decoded(record.value)
        assert isinstance(incident, Incident)
        if incident.state is IncidentState.OPEN and incident.step_id is not None and incident.kind in RULED_ON:
            self._pipeline.schedule.after(LOOKS_AFTER_MS, lambda: self._rule(incident), self)

    def _rule(self, incident: Incident) -> None:
        pipeline, chance = self._pipeline, self._pipeline.chance
        assert incident.step_id is not None
        reference = forward_key(incident.step_id)
        there = [d for d in pipeline.world.deeds if d.reference == reference and d.is_there]
        if there and incident.kind == "undo_failed":
            decision = chance.choice((Decision.RETRY, Decision.RETRY, Decision.ACCEPT_LOSS))
        elif there and incident.kind == "irreversible" and chance.random() < 0.5:
            pipeline.world.undo_by_hand(there[-1], "alice", pipeline.schedule.now_ms)
            decision = Decision.MARK_UNDONE
        elif there:
            decision = Decision.ACCEPT_LOSS
        else:
            decision = Decision.MARK_UNDONE
        arguments = self._edited(incident, there)
        if arguments is not None:
            decision = Decision.EDIT_ARGS
        fact = Resolution(
            incident.workflow_id,
            decision,
            Party.PERSON,
            "alice",
            step_id=incident.step_id,
            workflow_offset=incident.workflow_offset,
            version=incident.version,
            reason="looked at the remote",
            undo_arguments=arguments,
        )
        for _ in range(chance.choice((1, 1, 2))):  # a second click
            pipeline.write(self, fact, lambda told: None)

    def _edited(self, incident: Incident, there: list[Deed]) -> bytes | None:
        """Now and then she gives the undo other arguments, which mean the same deed; chance of its own, so that what
        else happens in a run stays as it was."""
        tool = self._pipeline.tools.get(incident.tool_name)
        takes = Decision.EDIT_ARGS in decisions_for(incident.kind)
        if not there or not takes or tool is None or tool.kind.compares:
            return None
        chance = Random(f"{incident.incident_id} {incident.version} {self._pipeline.schedule.now_ms}")
        if chance.random() >= self._pipeline.mix.edits:
            return None
        meant = {"subject": there[-1].subject} if tool.kind.from_input else {"number": there[-1].number}
        return encode_payload(meant | {EDITED_BY: "alice", "at": self._pipeline.schedule.now_ms})


class Others:
    """Somebody who knows nothing of agents and sets, now and then, what they have set."""

    def __init__(self, pipeline: Pipeline, rate: float) -> None:
        self._pipeline = pipeline
        self._rate = rate
        self._count = 0

    def start(self) -> None:
        self._pipeline.world.on_set = self._seen

    def _seen(self, register: str) -> None:
        pipeline = self._pipeline
        if not pipeline.calm and pipeline.chance.random() < self._rate:
            delay_ms = pipeline.chance.choice((1, 10, 100, 1_000, 5_000))
            pipeline.schedule.after(delay_ms, lambda: self._set(register))

    def _set(self, register: str) -> None:
        self._count += 1
        self._pipeline.world.write_other(register, f"theirs-{self._count}", self._pipeline.schedule.now_ms)
        self._pipeline.schedule.say("somebody", f"sets {register}")


class Approver(Process):
    """Somebody who is asked whether calls may be made: soon, too late, or never; yes or no; sometimes twice."""

    def __init__(self, pipeline: Pipeline, chance: Random) -> None:
        super().__init__("person", "bob")
        self._pipeline = pipeline
        self._chance = chance

    def start(self) -> None:
        pipeline = self._pipeline
        pipeline.broker.listeners.setdefault(pipeline.topics.incidents, []).append(self._came)

    def _came(self, record: StoredRecord) -> None:
        incident = decoded(record.value)
        assert isinstance(incident, Incident)
        if incident.state is IncidentState.OPEN and incident.kind == TROUBLE:
            after_ms = self._chance.choice((10, 500, 500, 3_000, APPROVAL_MS - 200, APPROVAL_MS + 500))
            self._pipeline.schedule.after(after_ms, lambda: self._rule(incident), self)

    def _rule(self, incident: Incident) -> None:
        chance, asked, now_ms = self._chance, incident.attributes, self._pipeline.schedule.now_ms
        approves = chance.random() < self._pipeline.mix.approvals
        if not approves and chance.random() < 0.3:
            return
        fact = Resolution(
            incident.workflow_id,
            Decision.APPROVE if approves else Decision.REJECT,
            Party.PERSON,
            "bob",
            step_id=incident.step_id,
            workflow_offset=incident.workflow_offset,
            version=int(asked["version"]),
            step_epoch=int(asked["epoch"]),
            argument_digest=asked["argument_digest"],
            expires_at_ms=now_ms + chance.choice((100, 2_000, 20_000)),
            reason="looked at it",
        )
        for _ in range(chance.choice((1, 1, 2))):
            self._pipeline.write(self, fact, lambda told: None)


class Container(Process):
    """Somebody who has everything undone that an agent did, or all agents, finished workflows included: what `amends
    contain` writes, of what it reads."""

    def __init__(self, pipeline: Pipeline, chance: Random) -> None:
        super().__init__("person", "carol")
        self._pipeline = pipeline
        self._chance = chance

    def start(self, times: int) -> None:
        for _ in range(times):
            self._pipeline.schedule.after(self._chance.choice((200, 3_000, 12_000, 30_000)), self._contain, self)

    def _contain(self) -> None:
        pipeline, table = self._pipeline, Latest(WorkflowEcho)
        for number in range(pipeline.mix.partitions):
            for record in pipeline.broker.read(pipeline.topics.workflows, number):
                table.fold(record)
        rows = sorted(table.rows(), key=lambda row: row.workflow_id)
        if not rows:
            return
        agent = self._chance.choice((None, *(row.agent_id for row in rows)))
        since_ms = self._chance.choice((None, None, pipeline.schedule.now_ms - 5_000))
        wanted = WorkflowFilter(UNDOABLE, agent, self._chance.random() < 0.2, started_since_ms=since_ms)
        request = Request("carol", "a bad agent")
        for row in filter(wanted.wants, rows):
            self._ask(fact_of(subject_of(row), request, pipeline.schedule.now_ms))

    def _ask(self, fact: WorkflowEvent) -> None:
        """Written until it stands there, as she is told when it doesn't."""
        self._pipeline.write(self, fact, lambda told: None if isinstance(told, StoredRecord) else self._ask(fact))
