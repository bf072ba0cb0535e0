"""A person who looks at incidents now and then, asks the world, and rules rightly, if sometimes twice or too late."""

from __future__ import annotations

from tests.simulation.lives import Belief
from tests.simulation.pipeline import Pipeline
from tests.simulation.schedule import Process

from amends.processors.memory import StoredRecord
from amends.schemas.codec import decode_as
from amends.schemas.commands import Incident, IncidentState
from amends.schemas.facts import Decision, Party, Resolution, WorkflowEvent, WorkflowStatus
from amends.schemas.keys import forward_key

LOOKS_AFTER_MS = 4_000


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
        incident = decode_as(Incident, record.value or b"")
        if incident.state is IncidentState.OPEN and incident.step_id is not None and incident.kind == "undo_failed":
            self._pipeline.schedule.after(LOOKS_AFTER_MS, lambda: self._rule(incident), self)

    def _rule(self, incident: Incident) -> None:
        pipeline, chance = self._pipeline, self._pipeline.chance
        assert incident.step_id is not None
        reference = forward_key(incident.step_id)
        there = [d for d in pipeline.world.deeds if d.reference == reference and d.is_there]
        if there:
            decision = chance.choice((Decision.RETRY, Decision.RETRY, Decision.ACCEPT_LOSS))
        else:
            decision = Decision.MARK_UNDONE
        fact = Resolution(
            incident.workflow_id,
            decision,
            Party.PERSON,
            "alice",
            step_id=incident.step_id,
            workflow_offset=incident.workflow_offset,
            version=incident.version,
            reason="looked at the remote",
        )
        for _ in range(chance.choice((1, 1, 2))):  # a second click
            pipeline.write(self, fact, lambda told: None)
