"""A child's side of its family: whose child it is, what its parent asked, and what it answers.

A request of the parent turns the child in any phase, a success too: an owned child's success is provisional until its
parent closes. The answer is state, and told again for every repeat of the request, so that a lost one comes again:

- how the child is closed, once it is;
- TURNED, when all that is left of it waits for people, or when it was closed and a late effect opened it again: the
  parent goes on with what does not depend on it, and stays open itself.

A request that finds no child held has the ledger read again from when the parent announced the child (`placing`,
`refolds`). One of which no STARTED is found is *unborn*: kept as a workflow that is turned already and has no steps.
When its STARTED comes after all, that begins turned, so that its agent is refused before its first effect.
"""

from __future__ import annotations

from amends.processors.policies import policy_of
from amends.processors.state import (
    CLOSED_PHASES,
    NOWHERE,
    Ask,
    Family,
    Header,
    Turn,
    UndoState,
    in_words,
    open_trouble,
    replace,
)
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase
from amends.schemas.facts import Fact, Party, WorkflowEvent, WorkflowStatus
from amends.schemas.family import AS_OF, CHILD_STARTED_OFFSET, SINCE_MS, number_of
from amends.schemas.policy import Around

CLOCKS_MS = 60_000
"""By how much the clocks of two brokers are taken to differ at most: the parent's and the child's partitions may be
led by different ones."""
CHILD_GONE = "child_gone"
ANNOUNCED_MAX = 64
"""CHILD_STARTED facts that are remembered of one child: one for each time it was resumed in its parent."""


def is_request(fact: Fact) -> bool:
    """Whether this is what a parent's fold asks of its child."""
    return (
        isinstance(fact, WorkflowEvent)
        and fact.status is WorkflowStatus.ROLLBACK_REQUESTED
        and fact.writer is Party.PARENT
        and fact.parent_workflow_id is not None
        and CHILD_STARTED_OFFSET in fact.attributes
    )


def family_of(fact: WorkflowEvent) -> Family | None:
    """Return whose child a workflow STARTED says it begins; None if it stands alone."""
    if fact.parent_workflow_id is None or fact.detached:
        return None
    at = number_of(fact, CHILD_STARTED_OFFSET)
    return Family(fact.parent_workflow_id, fact.parent_workflow_offset, () if at == NOWHERE else (at,))


def is_of(family: Family | None, fact: WorkflowEvent) -> bool:
    """Whether the family is that of the parent instance that `fact` names."""
    named = (fact.parent_workflow_id, fact.parent_workflow_offset)
    return family is not None and (family.parent_id, family.parent_offset) == named


def is_asked(family: Family | None, fact: WorkflowEvent) -> bool:
    """Whether a request means this child: its parent announced it where the request says. A child that does not know
    where it was announced is meant by every request of its parent."""
    if family is None or not is_of(family, fact):
        return False
    return not family.announced or number_of(fact, CHILD_STARTED_OFFSET) in family.announced


def since_ms(fact: WorkflowEvent) -> int:
    """Return the append time from which on the ledger holds all of the child that a request is about."""
    told_ms = number_of(fact, SINCE_MS)
    return looked_for_from_ms(told_ms if told_ms != NOWHERE else fact.child_started_at_ms or 0)


def looked_for_from_ms(announced_at_ms: int) -> int:
    """Return the append time from which on the ledger holds all of a child announced at `announced_at_ms`."""
    return max(0, announced_at_ms - CLOCKS_MS)


def announced_at_ms(fact: Fact) -> int | None:
    """Return when the parent announced the child that a STARTED begins; None if it begins none, or does not say."""
    if not isinstance(fact, WorkflowEvent) or fact.status is not WorkflowStatus.STARTED:
        return None
    return fact.child_started_at_ms if family_of(fact) is not None else None


def is_late(fact: WorkflowEvent, at_ms: int, grace_ms: int) -> bool:
    """Whether a child's STARTED, appended at `at_ms`, came too late to begin or resume anything: its parent may have
    asked for the child's undoing, and that be forgotten, or it repeats the STARTED of a child that is. Half the grace
    lies between this and either, so that no difference of two brokers' clocks blurs it."""
    announced_ms = announced_at_ms(fact)
    return announced_ms is not None and at_ms > announced_ms + grace_ms // 2


def is_known(family: Family | None, fact: WorkflowEvent) -> bool:
    """Whether a child's STARTED names an announcement that began or resumed this child before, or is taken to be one
    of those that are remembered no more."""
    if family is None or not is_of(family, fact):
        return False
    at, announced = number_of(fact, CHILD_STARTED_OFFSET), family.announced
    return at in announced or (len(announced) >= ANNOUNCED_MAX and announced[0] < at < min(announced[1:]))


def is_outrun(family: Family | None, fact: WorkflowEvent) -> bool:
    """Whether the child was begun or resumed under a later announcement of its parent than the one a STARTED names."""
    if family is None or not is_of(family, fact) or fact.status is not WorkflowStatus.STARTED:
        return False
    return number_of(fact, CHILD_STARTED_OFFSET) < max(family.announced, default=NOWHERE)


def resumed(workflow: Workflow, fact: WorkflowEvent) -> None:
    """The parent resumed its child, and announced it anew."""
    family, at = workflow.header.family, number_of(fact, CHILD_STARTED_OFFSET)
    if family is None or not is_of(family, fact) or at == NOWHERE or is_known(family, fact):
        return
    announced = (*family.announced, at)
    if len(announced) > ANNOUNCED_MAX:
        announced = (announced[0], *announced[2:])
    workflow.put_header(replace(workflow.header, family=family._replace(announced=announced)))


def asked(workflow: Workflow, fact: WorkflowEvent, offset: int) -> None:
    """Keep that the parent asks, and where it last did."""
    family = workflow.header.family
    assert family is not None
    at = number_of(fact, CHILD_STARTED_OFFSET)
    before = next((ask for ask in family.asks if ask.announced == at), Ask(at))
    asks = (*(ask for ask in family.asks if ask.announced != at), before._replace(offset=offset))
    workflow.put_header(replace(workflow.header, family=family._replace(asks=asks)))


def answer(workflow: Workflow) -> None:
    """Bring up to date what the parent is told."""
    header = workflow.header
    family = header.family
    if family is None or not family.asks:
        return
    said = _said(workflow)
    asks = tuple(_answered(ask, said, header.folded_to) for ask in family.asks)
    if asks != family.asks:
        workflow.put_header(replace(header, family=family._replace(asks=asks)))


def answer_of(header: Header, family: Family, ask: Ask, now_ms: int) -> WorkflowEvent:
    """Return the fact that tells the parent."""
    return WorkflowEvent(
        workflow_id=family.parent_id,
        epoch=0,
        status=WorkflowStatus.CHILD_CLOSED,
        workflow_offset=family.parent_offset,
        writer=Party.PROCESSOR,
        child_workflow_id=header.workflow_id,
        closed_as=ask.answer,
        timestamp_ms=now_ms,
        attributes={CHILD_STARTED_OFFSET: str(ask.announced), AS_OF: str(max(ask.as_of, ask.offset))},
    )


def _answered(ask: Ask, said: str, folded_to: int) -> Ask:
    word = said or (Phase.TURNED.value if ask.answer else "")
    return ask if word == ask.answer else ask._replace(answer=word, as_of=folded_to)


def _said(workflow: Workflow) -> str:
    header = workflow.header
    if open_trouble(header.troubles, CHILD_GONE) is not None:
        return Phase.TURNED.value
    if header.phase in CLOSED_PHASES:
        return header.phase.value
    return Phase.TURNED.value if _waits_for_people(workflow) else ""


def _waits_for_people(workflow: Workflow) -> bool:
    """Whether nothing moves any more unless a person decides."""
    if workflow.undoing or (workflow.live and not workflow.live.isdisjoint(workflow.owing)):
        return False
    if all(_is_dead(workflow, number) for number in workflow.owing):
        return bool(workflow.owing or workflow.header.unread)
    if policy_of(workflow.header).around_waiting is not Around.HALT or workflow.header.observe:
        return False
    ready = [rank[2] for queue in workflow.order_of_undoing().ready.values() for rank in queue]
    return workflow.unsure.isdisjoint(workflow.owing) and all(_is_dead(workflow, number) for number in ready)


def _is_dead(workflow: Workflow, number: int) -> bool:
    undo = workflow.steps[number].undo
    return undo is not None and undo.state is UndoState.DEAD


# --- the unborn -------------------------------------------------------------------------------------------------------


def unborn(child_id: str, fact: WorkflowEvent, offset: int, at_ms: int, *, is_gone: bool) -> Workflow:
    """Return what is kept of a child that was asked for and never began, as far as the ledger shows.

    Args:
        offset: of the request: where this stands in for a start.
        is_gone: the ledger no longer holds all since the child was announced, so nobody knows what it did.
    """
    family = Family(fact.parent_workflow_id or "", fact.parent_workflow_offset, unborn=True)
    family = family._replace(announced=(number_of(fact, CHILD_STARTED_OFFSET),))
    reason = in_words(f"undoing was asked for by {fact.by or 'its parent'} before it began")
    header = Header(
        child_id,
        offset,
        at_ms,
        Phase.TURNED,
        epoch=1,
        turned_at_ms=at_ms,
        turned_reason=reason,
        turns=(Turn(0, NOWHERE, at_ms, reason),),
        superseded=True,  # it has no echo, and no fact that names no start belongs to it
        family=family,
    )
    workflow = Workflow(header, {})
    workflow.changed.add(None)
    if is_gone:
        why = "its parent asks for its undoing, and the ledger no longer holds all since the parent announced it"
        workflow.with_trouble(CHILD_GONE, why, offset, at_ms)
    return workflow


def is_gone(header: Header) -> bool:
    """Whether nobody knows what the child did, because the ledger no longer holds it."""
    return header.family is not None and any(t.kind == CHILD_GONE for t in header.troubles)


def is_unborn_of(header: Header, fact: WorkflowEvent) -> bool:
    """Whether a STARTED begins, or resumes, what was asked for before it came."""
    family = header.family
    return family is not None and family.unborn and is_asked(family, fact)
