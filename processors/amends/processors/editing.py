"""Other arguments for an undo, given by a person (`edit_args`).

Rules
- Only an undo that was given up on is edited. One that is granted, under way or closed keeps what it was told.
- It runs with the new arguments in a new generation, under a key of its own: a remote would answer the old key with the
  old result. So nothing of the old generation may have taken, as far as the ledger shows.
- They, who gave them, and where on the ledger, are kept with the undo, beside what its call says, now or later. The
  undo of an effect that comes to light when it is closed is another.
- An edit that can't be taken changes nothing but the incident, which then says why: the person reads it there.
"""

from __future__ import annotations

from typing import Final

from amends.processors.state import UNDO_DEAD, Step, Undo, in_words, replace
from amends.processors.undos import granted_anew
from amends.processors.windows import CLOSED
from amends.schemas.contract import Contract
from amends.schemas.decisions import decisions_for
from amends.schemas.edited import why_unfit
from amends.schemas.facts import Decision, Party, Resolution

_REFUSED: Final = "; the other arguments that "


def fold_edit(step: Step, fact: Resolution, contract: Contract | None, offset: int, at_ms: int) -> Step:
    """Return the step after a person gave its undo other arguments. One taken on another version, or about an undo that
    is not given up on, does nothing."""
    undo = step.undo
    if undo is None or undo.state is not UNDO_DEAD or (fact.version is not None and fact.version != undo.version):
        return step
    why = _obstacle(step, undo, fact, contract)
    if why is not None:
        return _refused(step, fact, why)
    given = (fact.undo_arguments or b"").decode()
    edited = replace(undo, edited_by=in_words(fact.by), edited_offset=offset, edited_arguments=given)
    return granted_anew(step, edited, fact.by, contract, at_ms, fresh=True)


def _obstacle(step: Step, undo: Undo, fact: Resolution, contract: Contract | None) -> str | None:
    if fact.writer is not Party.PERSON:
        return f"only a person gives other arguments, and a {fact.writer.value} did"
    unfit = why_unfit(fact.undo_arguments)
    if unfit is not None:
        return unfit
    open_kinds = {trouble.kind for trouble in step.troubles if trouble.closed_at_ms is None}
    if contract is None or contract.undo is None:
        return f"{step.tool_name} has no undo that could take them"
    if not any(Decision.EDIT_ARGS in decisions_for(kind) for kind in open_kinds):
        return f"an incident of the kind {', '.join(sorted(open_kinds)) or 'that is closed'} takes none"
    if undo.doubt or _began_too_late(undo, open_kinds):
        return "an attempt with the old ones may have taken: look at the world, then mark it undone, or retry it"
    return None


def _began_too_late(undo: Undo, open_kinds: set[str]) -> bool:
    """Whether the attempt that was granted began when its window had closed: nobody says how that ends."""
    return CLOSED in open_kinds and any(attempt == undo.attempt for attempt, _ in undo.started)


def _refused(step: Step, fact: Resolution, why: str) -> Step:
    """The incidents of the undo say so, once more to be read: the newest refusal in place of the one before."""
    words = f"{_REFUSED}{in_words(fact.by)} gave are refused: {why}"
    troubles = tuple(
        trouble
        if trouble.closed_at_ms is not None or trouble.kind == "contradiction"
        else replace(trouble, version=trouble.version + 1, reason=trouble.reason.partition(_REFUSED)[0] + words)
        for trouble in step.troubles
    )
    return replace(step, troubles=troubles)
