"""Requests for an approval as people see them, and a person's ruling on one. Pure.

A request has the id of its incident and a number: where the agent asks again, for an expiry or for other arguments, it
is another request. A ruling is on the request that was looked at; refused here is what the fold would surely refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amends.schemas.approvals import TROUBLE, Approval, ApprovalState, refusal
from amends.schemas.commands import Incident, IncidentState, Phase, WorkflowEcho
from amends.schemas.facts import Decision, Party, Resolution

ID_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the approval of one call."""

    incident: Incident
    approval: Approval  # as it was asked for

    @property
    def id(self) -> str:
        return f"{self.incident.incident_id}.{self.approval.version}"

    @property
    def short_id(self) -> str:
        return f"{self.incident.incident_id[:ID_CHARACTERS]}.{self.approval.version}"

    @property
    def is_open(self) -> bool:
        return self.incident.state is IncidentState.OPEN

    def fits(self, wanted: str) -> bool:
        """Whether a person means this one; a number is looked at later, so that he is told of the newer one."""
        return self.incident.incident_id.startswith(wanted.partition(".")[0])

    def is_numbered(self, wanted: str) -> bool:
        """Whether a person says which request he has looked at."""
        return "." in wanted


def request_of(incident: Incident) -> Request | None:
    """Return the request that an incident is about, None if it is about something else."""
    said = incident.attributes
    if incident.kind != TROUBLE or "argument_digest" not in said:
        return None
    return Request(
        incident,
        Approval(
            ApprovalState.REQUESTED,
            int(said["epoch"]),
            said["argument_digest"],
            said["requested_by"],
            incident.agent_id,
            int(said["requested_offset"]),
            int(said["until_ms"]),
            int(said["version"]),
        ),
    )


def newest_first(incidents: Iterable[Incident]) -> list[Request]:
    """Return the requests among incidents."""
    found = [request for incident in incidents if (request := request_of(incident)) is not None]
    return sorted(found, key=lambda request: request.incident.opened_at_ms, reverse=True)


def state_of(request: Request, now_ms: int) -> str:
    """Return in a few words how it stands with a request."""
    if not request.is_open:
        return request.incident.closed_by or "over"
    return "expired" if now_ms >= request.approval.until_ms else "waits"


def ruling(
    request: Request, decision: Decision, by: str, reason: str, now_ms: int, stands_ms: int | None
) -> Resolution:
    """Return the fact of a ruling. A grant stands for `stands_ms` from now."""
    return Resolution(
        workflow_id=request.incident.workflow_id,
        decision=decision,
        writer=Party.PERSON,
        by=by,
        step_id=request.incident.step_id,
        workflow_offset=request.incident.workflow_offset,
        version=request.approval.version,
        reason=reason,
        timestamp_ms=now_ms,
        step_epoch=request.approval.epoch,
        argument_digest=request.approval.argument_digest,
        expires_at_ms=None if stands_ms is None else now_ms + stands_ms,
    )


def why_not(request: Request, fact: Resolution, echo: WorkflowEcho | None, now_ms: int, wanted: str) -> str:
    """Return why a ruling would change nothing, "" if it would.

    Args:
        echo: what the fold last said of the workflow.
        wanted: the id as the person gave it.
    """
    number = wanted.partition(".")[2]
    if number and number != str(request.approval.version):
        return (
            f"request {wanted} is over: the arguments may have changed since. Now {request.short_id} is asked for: "
            f"amends approvals show {request.short_id}"
        )
    same_instance = echo is not None and echo.workflow_offset == request.incident.workflow_offset
    told = None
    if echo is not None and same_instance:
        told = next((told for told in echo.approvals if told.step_id == request.incident.step_id), None)
        if echo.phase is not Phase.RUNNING:
            return f"the workflow is {echo.phase}: its agent makes no more calls"
    takes_back = fact.decision is Decision.REJECT and told is not None and told.state == ApprovalState.GRANTED
    if not request.is_open and not takes_back:
        return f"request {request.short_id} is decided: it is {request.incident.closed_by or 'over'}"
    epoch = echo.epoch if echo is not None and same_instance else request.approval.epoch
    approval = request.approval
    if takes_back and told is not None:
        approval = approval._replace(state=ApprovalState.GRANTED, by=told.by, until_ms=told.until_ms)
    why = refusal(approval, fact, epoch, now_ms)
    return f"request {request.short_id}: {why}" if why else ""
