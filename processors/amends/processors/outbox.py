"""What state makes a partition send: commands, the echo, incidents, dead letters. And what was sent already."""

from __future__ import annotations

from dataclasses import dataclass, field

from amends.processors import approving, asking, children, story
from amends.processors.acknowledging import version_of
from amends.processors.echoing import Echoed, echo_of, echoed
from amends.processors.emission import Emission, LedgerRecord
from amends.processors.plan import Plan, entry, probe_name
from amends.processors.state import CLOSED_PHASES, Ask, Step, Trouble, UndoState, arguments_of
from amends.processors.terms import Terms
from amends.processors.undos import GIVEN_UP
from amends.processors.workflow import Workflow
from amends.schemas.approvals import TROUBLE
from amends.schemas.codec import Record, encode, encode_value
from amends.schemas.commands import (
    Command,
    DeadLetter,
    Incident,
    IncidentState,
    Phase,
    ProbeCommand,
    ResendCommand,
    UndoCommand,
)
from amends.schemas.contract import lane_of
from amends.schemas.envelope import headers_of
from amends.schemas.facts import Carry, Timeout
from amends.schemas.keys import incident_id, undo_key


@dataclass(slots=True)
class Sent:
    """What was sent of one workflow. In memory only: whatever is lost with it is sent again."""

    echo: Echoed | None = None
    incidents: dict[str, tuple[IncidentState, int]] = field(default_factory=dict[str, tuple[IncidentState, int]])
    commands: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])  # until when
    dead: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    proposed: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    asks: dict[int, Ask] = field(default_factory=dict[int, Ask])  # that were answered


@dataclass(slots=True)
class Outbox:
    """Collects emissions of one partition."""

    terms: Terms
    partition: int
    lanes_missing: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """(workflow id, lane) of each open incident of a lane that does not exist. It depends on settings, so it is no part
    of a workflow's state; it is kept beside it, so that a start with the lane closes what was opened."""
    _emissions: list[Emission] = field(default_factory=list[Emission])

    def add(self, emission: Emission) -> None:
        self._emissions.append(emission)

    def take(self) -> list[Emission]:
        taken, self._emissions = self._emissions, []
        return taken

    def as_sent(self, workflow: Workflow) -> Sent:
        """Return what a restored workflow has surely sent: all that follows from facts the checkpoint covers."""
        sent = Sent(echo=echoed(workflow))
        family = workflow.header.family
        if family is not None:
            sent.asks = {ask.announced: ask for ask in family.asks}
        for step, trouble in _troubles(workflow):
            incident = self._incident_id(workflow, step, trouble)
            state = IncidentState.OPEN if trouble.closed_at_ms is None else IncidentState.CLOSED
            sent.incidents[incident] = (state, trouble.version)
            if step is not None and trouble.kind in GIVEN_UP and step.undo is not None:
                sent.dead.add((step.step_id, trouble.version))
        return sent

    def fill(self, workflow: Workflow, sent: Sent, made: Plan | None, now_ms: int) -> int | None:
        """Send what state calls for and was not sent; return when to look again, None if only a fact can change it.

        Args:
            made: the plan; None if there is nothing to plan.
        """
        self._echo(workflow, sent, now_ms)
        if workflow.troubled or workflow.header.troubles:
            self._incidents(workflow, sent, now_ms)
        self._answers(workflow, sent, now_ms)
        wake_ms = None if made is None else self._commands(workflow, sent, made, now_ms)
        if workflow.header.phase in CLOSED_PHASES and (made is None or not made.commands):
            sent.commands.clear()
            for lane in [lane for key, lane in self.lanes_missing if key == workflow.header.workflow_id]:
                self._lane_missing(workflow, lane, IncidentState.CLOSED, now_ms)  # closed by rulings: nothing waits
        return wake_ms

    def _commands(self, workflow: Workflow, sent: Sent, made: Plan, now_ms: int) -> int | None:
        wake_ms = made.wake_at_ms
        for command in made.commands:
            again_ms = self._command(workflow, sent, command, now_ms)
            wake_ms = again_ms if wake_ms is None else min(wake_ms, again_ms)
        for child in made.children:
            again_ms = self._request(workflow, sent, child, now_ms)
            wake_ms = again_ms if wake_ms is None else min(wake_ms, again_ms)
        return wake_ms

    # --- echo -------------------------------------------------------------------------------------------------------

    def _echo(self, workflow: Workflow, sent: Sent, now_ms: int) -> None:
        header = workflow.header
        said = echoed(workflow)
        if said == sent.echo or header.phase is Phase.NONE or header.superseded:
            return  # the echo of an id is that of its newest instance
        sent.echo = said
        echo = echo_of(workflow, now_ms)
        self._send(self.terms.topics.workflows, echo, header.workflow_id, now_ms, f"echo-{header.folded_to}")

    # --- incidents and dead letters ---------------------------------------------------------------------------------

    def _incident_id(self, workflow: Workflow, step: Step | None, trouble: Trouble) -> str:
        header = workflow.header
        return incident_id(
            header.workflow_id, header.started_offset, trouble.kind, step.step_id if step is not None else ""
        )

    def _incidents(self, workflow: Workflow, sent: Sent, now_ms: int) -> None:
        for step, trouble in _troubles(workflow):
            name = self._incident_id(workflow, step, trouble)
            state = IncidentState.OPEN if trouble.closed_at_ms is None else IncidentState.CLOSED
            if sent.incidents.get(name) == (state, trouble.version):
                continue
            sent.incidents[name] = (state, trouble.version)
            self._incident(workflow, step, trouble, name, state, now_ms)
            if step is not None and trouble.kind in GIVEN_UP and state is IncidentState.OPEN:
                self._dead_letter(workflow, step, trouble, name, sent, now_ms)

    def _incident(
        self, workflow: Workflow, step: Step | None, trouble: Trouble, name: str, state: IncidentState, now_ms: int
    ) -> None:
        header = workflow.header
        contract = workflow.contract_of(step) if step is not None else None
        incident = Incident(
            incident_id=name,
            kind=trouble.kind,
            state=state,
            version=version_of(step, trouble),
            summary=story.incident_summary(header, step, trouble),
            detail=story.incident_detail(workflow, step, trouble, name),
            workflow_id=header.workflow_id,
            workflow_offset=header.started_offset,
            step_id=step.step_id if step is not None else None,
            tool_name=step.tool_name if step is not None else "",
            lane=lane_of(contract) if contract is not None else "",
            agent_id=header.agent_id,
            partition=self.partition,
            folded_to=header.folded_to,
            opened_at_ms=trouble.opened_at_ms,
            closed_at_ms=trouble.closed_at_ms,
            closed_by=trouble.closed_by,
            attributes=approving.attributes_of(step) if step is not None and trouble.kind == TROUBLE else {},
        )
        self._send(self.terms.topics.incidents, incident, name, now_ms, f"{name}-{trouble.version}-{state}", None)

    def _dead_letter(
        self, workflow: Workflow, step: Step, trouble: Trouble, name: str, sent: Sent, now_ms: int
    ) -> None:
        undo, contract = step.undo, workflow.contract_of(step)
        if undo is None or undo.state is not UndoState.DEAD or contract is None:
            return
        if (step.step_id, trouble.version) in sent.dead:
            return
        sent.dead.add((step.step_id, trouble.version))
        header, lane = workflow.header, lane_of(contract)
        command = UndoCommand(
            workflow_id=header.workflow_id,
            workflow_offset=header.started_offset,
            epoch=header.epoch,
            lane=lane,
            as_of=header.folded_to,
            entries=(entry(step, contract, now_ms),),
            timestamp_ms=now_ms,
        )
        letter = DeadLetter(
            workflow_id=header.workflow_id,
            workflow_offset=header.started_offset,
            step_id=step.step_id,
            tool_name=step.tool_name,
            lane=lane,
            incident_id=name,
            reason=trouble.reason,
            text=story.incident_detail(workflow, step, trouble, name),
            generation=undo.generation,
            attempt=undo.attempt,
            attempts_spent=undo.spent,
            key=undo_key(step.step_id, undo.generation),
            arguments=arguments_of(step) or b"{}",
            original=encode(command),
            last_error=undo.last_error,
            folded_to=header.folded_to,
            timestamp_ms=now_ms,
        )
        topic = self.terms.topics.undo_dead_letters(lane) if lane in self.terms.lanes else ""
        if not topic:
            return
        headers = (
            *dead_letter_headers(
                self.terms.topics.undo(lane),
                self.partition,
                header.folded_to,
                self.terms.group,
                undo.spent,
                trouble.reason,
            ),
            ("amends-workflow-id", header.workflow_id.encode()),
            ("amends-step-id", step.step_id.encode()),
            ("amends-tool", step.tool_name.encode()),
            ("amends-incident-id", name.encode()),
            ("amends-idempotency-key", letter.key.encode()),
        )
        self._send(topic, letter, header.workflow_id, now_ms, f"{name}-{trouble.version}", headers=headers)

    def partition_incident(self, partition: int, record: LedgerRecord, reason: str) -> None:
        """A record whose workflow nobody can tell: an incident of the partition."""
        name = incident_id("", record.offset, "unreadable_key", str(partition))
        incident = Incident(
            incident_id=name,
            kind="unreadable",
            state=IncidentState.OPEN,
            version=1,
            summary=f"a record of partition {partition} belongs to nobody",
            detail=f"The record at offset {record.offset}: {reason}. It is in the dead-letter topic, byte for byte.\n"
            "To do: find out who wrote it. It belongs to no workflow: nothing waits for it, no decision closes this.",
            partition=partition,
            folded_to=record.offset,
            opened_at_ms=record.appended_at_ms,
        )
        self._send(self.terms.topics.incidents, incident, name, record.appended_at_ms, name, None)

    def tell(self, incident: Incident, now_ms: int) -> None:
        """An incident that is no workflow's."""
        name = f"{incident.incident_id}-{self.partition}-{now_ms}"
        self._send(self.terms.topics.incidents, incident, incident.incident_id, now_ms, name, None)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _command(self, workflow: Workflow, sent: Sent, command: Command, now_ms: int) -> int:
        """Send a command unless it is fresh; return when it is to be sent again."""
        name = command_name(command)
        until_ms = sent.commands.get(name, 0)
        if until_ms > now_ms:
            return until_ms
        if command.lane not in self.terms.lanes:
            self._lane_missing(workflow, command.lane, IncidentState.OPEN, now_ms)
            sent.commands[name] = now_ms + self.terms.lane_again_ms
            return now_ms + self.terms.lane_again_ms
        self._lane_missing(workflow, command.lane, IncidentState.CLOSED, now_ms)
        again_ms = now_ms + self.terms.command_repeat_ms
        if isinstance(command, UndoCommand):
            for member in command.entries:
                sent.commands[(member.step_id, member.generation, member.attempt)] = again_ms
        else:
            sent.commands[name] = again_ms
        topic = self.terms.topics.undo(command.lane)
        self._send(topic, command, command.workflow_id, now_ms, f"{command.as_of}-{now_ms}")
        return again_ms

    # --- the family -------------------------------------------------------------------------------------------------

    def _request(self, workflow: Workflow, sent: Sent, child: Step, now_ms: int) -> int:
        """Ask a child to be undone, unless that is fresh; return when it is to be asked again."""
        assert child.undo is not None
        name = (child.step_id, child.undo.generation, child.undo.attempt)
        until_ms = sent.commands.get(name, 0)
        if until_ms > now_ms:
            return until_ms
        again_ms = sent.commands[name] = now_ms + self.terms.command_repeat_ms
        request = children.request_of(workflow, child, now_ms)
        self._send(self.terms.topics.ledger, request, request.workflow_id, now_ms, f"{child.step_id}-{now_ms}", None)
        return again_ms

    def _answers(self, workflow: Workflow, sent: Sent, now_ms: int) -> None:
        """Answer the parent: once for each request, and when the answer is another."""
        family = workflow.header.family
        if family is None:
            return
        for ask in family.asks:
            if ask.answer and sent.asks.get(ask.announced) != ask:
                sent.asks[ask.announced] = ask
                told = asking.answer_of(workflow.header, family, ask, now_ms)
                name = f"closed-{told.child_workflow_id}-{ask.announced}-{max(ask.as_of, ask.offset)}"
                self._send(self.terms.topics.ledger, told, family.parent_id, now_ms, name, None)

    def _lane_missing(self, workflow: Workflow, lane: str, state: IncidentState, now_ms: int) -> None:
        """Open or close the incident of a lane, unless it is so already."""
        header = workflow.header
        subject = (header.workflow_id, lane)
        if (state is IncidentState.OPEN) == (subject in self.lanes_missing):
            return
        reason = f"there is no undo lane {lane!r}: its undos wait"
        if state is IncidentState.OPEN:
            self.lanes_missing.add(subject)
        else:
            self.lanes_missing.discard(subject)
        closed_at_ms = now_ms if state is IncidentState.CLOSED else None
        trouble = Trouble("lane_missing", 1, reason, header.folded_to, header.turned_at_ms, closed_at_ms)
        name = incident_id(header.workflow_id, header.started_offset, "lane_missing", lane)
        self._incident(workflow, None, trouble, name, state, now_ms)

    # --- forgetting and carrying ------------------------------------------------------------------------------------

    def forget(self, workflow: Workflow, folded_to: int, now_ms: int) -> None:
        """A workflow is dropped: nothing of it stands on compacted topics any more. The tombstone says how far the
        ledger was folded, so that a reader can tell a stale one."""
        header = workflow.header
        for lane in [lane for workflow_id, lane in self.lanes_missing if workflow_id == header.workflow_id]:
            self._lane_missing(workflow, lane, IncidentState.CLOSED, now_ms)
        if header.phase is Phase.NONE or header.superseded:
            return
        headers = (
            ("amends-workflow-offset", str(header.started_offset).encode()),
            ("amends-folded-to", str(folded_to).encode()),
        )
        key = header.workflow_id.encode()
        self.add(Emission(self.terms.topics.workflows, key, None, self.partition, headers))

    def start_carried(self, workflow: Workflow, now_ms: int) -> None:
        """The start of a workflow was gone from the ledger, an incident; now a Carry was found."""
        header = workflow.header
        reason = "the ledger no longer holds its start; it was folded on from a Carry"
        trouble = Trouble("start_gone", 1, reason, header.folded_to, header.started_at_ms, now_ms, "a Carry")
        name = incident_id(header.workflow_id, header.started_offset, "start_gone", "")
        self._incident(workflow, None, trouble, name, IncidentState.CLOSED, now_ms)

    def carry(self, carry: Carry) -> Emission:
        name = f"carry-{carry.workflow_offset}-{carry.folded_to}-{carry.attributes['part']}"
        headers = tuple(headers_of(carry, source=self.terms.source, event_id=name, time_ms=carry.timestamp_ms))
        return Emission(
            self.terms.topics.ledger, carry.workflow_id.encode(), encode_value(carry), self.partition, headers
        )

    # --- writing ----------------------------------------------------------------------------------------------------

    def timeout(self, timeout: Timeout, now_ms: int) -> Emission:
        name = f"timeout-{timeout.kind}-{timeout.armed_offset}-{now_ms}"
        headers = tuple(headers_of(timeout, source=self.terms.source, event_id=name, time_ms=now_ms))
        key = timeout.workflow_id.encode()
        return Emission(self.terms.topics.ledger, key, encode_value(timeout), self.partition, headers)

    def _send(
        self,
        topic: str,
        record: Record,
        key: str,
        now_ms: int,
        event_id: str,
        partition: int | None = -1,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        cloud = headers_of(record, source=self.terms.source, event_id=event_id, time_ms=now_ms)
        self._emissions.append(
            Emission(
                topic,
                key.encode(),
                encode_value(record),
                self.partition if partition == -1 else partition,
                (*cloud, *headers),
            )
        )


def command_name(command: Command) -> tuple[object, ...]:
    """Return what a command is about: two of one name are the same command, repeated."""
    match command:
        case UndoCommand():
            first = command.entries[0]
            return (first.step_id, first.generation, first.attempt)
        case ProbeCommand():
            return probe_name(command.step_id, command.number, command.attempts)
        case ResendCommand():
            return ("resend", command.step_id, command.number, command.attempts)


def dead_letter_headers(
    topic: str, partition: int, offset: int, group: str, deliveries: int, message: str
) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of KIP-1191, whose names every dead-letter tool knows; values are UTF-8 text."""
    return (
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", str(partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.delivery.count", str(deliveries).encode()),
        ("__dlq.errors.message", message.encode()),
    )


def dead_record(terms: Terms, partition: int, record: LedgerRecord, reason: str) -> Emission:
    """Return a record of the ledger that nobody could read or fold, byte for byte, for the dead-letter topic."""
    headers = (
        *record.headers,
        *dead_letter_headers(terms.topics.ledger, partition, record.offset, terms.group, 1, reason),
        ("amends-original-timestamp", str(record.appended_at_ms).encode()),
    )
    return Emission(terms.topics.ledger_dead_letters, record.key, record.value, partition, headers)


def _troubles(workflow: Workflow) -> list[tuple[Step | None, Trouble]]:
    found: list[tuple[Step | None, Trouble]] = [(None, t) for t in workflow.header.troubles]
    found.extend((step, t) for step in workflow.troubled_steps() for t in step.troubles)
    return found
