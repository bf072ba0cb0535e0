"""The turn: a workflow, or what came after one of its savepoints, stops going forward.

A turn of the whole workflow is TURNED: nobody goes on. A turn to a savepoint leaves it RUNNING in the next epoch; what
came after the savepoint is condemned, and its plan runs beside the agent, which waits for it. Either way the epoch that
is ended, and where the savepoint stands, is kept for ever: a step is condemned by it whenever its facts land.

A savepoint is void if a call was open or unknown when it was taken, or a record could not be read: nobody can say on
which side of it that call stands. The next older one is meant then; the oldest is the start of the workflow.
"""

from __future__ import annotations

from typing import NamedTuple

from amends.processors import acknowledging
from amends.processors.condemned import bring_all_on
from amends.processors.state import CLOSED_PHASES, NOWHERE, Savepoint, Turn, in_words, replace
from amends.processors.workflow import Workflow
from amends.schemas.commands import Phase

SAVEPOINTS_MAX = 64
"""Kept of one workflow; the oldest go first."""
TURNS_MAX = 64
"""Turns to savepoints of one workflow; the next one is a turn of the whole."""
REASON_MAX = 120
"""Characters of a reason that are kept with each turn; the last turn's is kept whole."""


class Target(NamedTuple):
    """Where a turn goes to."""

    offset: int
    words: str


def turn(workflow: Workflow, reason: str, offset: int, at_ms: int, target: Target | None = None) -> None:
    """End the epoch: of the whole workflow, or of what stands after `target`. Does nothing if that is so already."""
    header = workflow.header
    if target is not None and len(header.turns) >= TURNS_MAX and not workflow.is_turned:
        reason, target = f"{reason}; it had been undone to savepoints {len(header.turns)} times", None
    at = NOWHERE if target is None else target.offset
    final = target is None or header.phase in CLOSED_PHASES or workflow.is_turned
    if workflow.is_turned and any(t.final and t.offset <= at for t in header.turns):
        return
    if target is not None:
        reason = in_words(f"{reason}; {target.words}")
    made = Turn(header.epoch, at, at_ms, reason[:REASON_MAX], final)
    kept = () if target is None else header.turns  # a turn of the whole condemns all that the others do
    changed = replace(
        header,
        phase=Phase.TURNED if final else Phase.RUNNING,
        epoch=header.epoch + 1,
        turned_at_ms=at_ms,
        turned_reason=reason,
        turns=(*kept, made),
        savepoints=tuple(s for s in header.savepoints if s.offset <= at),
        failed_calls=(),
        is_vacant=False,
    )
    if not final:  # who goes on has a whole lease from here
        changed = replace(changed, armed_offset=offset, armed_at_ms=at_ms)
    workflow.put_header(changed)
    acknowledging.moot(workflow, at_ms, "it turned")
    workflow.reindex()
    bring_all_on(workflow, offset, at_ms)


def take_savepoint(workflow: Workflow, name: str, epoch: int, offset: int, behind: int = NOWHERE) -> None:
    """Keep a savepoint of this epoch. One that is void replaces no sound one of its name; neither does one that repeats
    it behind calls that came since: they are not behind the place that its agent knows.

    Args:
        behind: what the agent had been acknowledged; NOWHERE if it does not say.
    """
    header = workflow.header
    if header.phase is not Phase.RUNNING or epoch != header.epoch or not name:
        return
    before = next((s for s in header.savepoints if s.name == in_words(name)), None)
    if before is not None and NOWHERE < behind < before.offset and _was_called_since(workflow, before.offset):
        return
    void = bool(workflow.expected() or header.unread)
    made = Savepoint(in_words(name), offset, epoch, void)
    kept = tuple(s for s in header.savepoints if s.name != made.name or (void and not s.void))
    workflow.put_header(replace(header, savepoints=(*kept, made)[-SAVEPOINTS_MAX:]))


def _was_called_since(workflow: Workflow, offset: int) -> bool:
    return any(attempt.started_offset > offset for step in workflow.steps for attempt in step.attempts)


def target_of(workflow: Workflow, name: str) -> Target | None:
    """Return where an undoing to the savepoint `name` goes to; None if no savepoint of this name is known."""
    header = workflow.header
    meant = next((s for s in reversed(header.savepoints) if s.name == in_words(name)), None)
    if meant is None:
        return None
    if not meant.void:
        return Target(meant.offset, f"back to savepoint {meant.name!r}")
    sound = next((s for s in reversed(header.savepoints) if s.offset < meant.offset and not s.void), None)
    why = f"savepoint {meant.name!r} was taken while a call was open or unknown, so back to"
    if sound is None:
        return Target(header.started_offset, f"{why} the start of the workflow")
    return Target(sound.offset, f"{why} savepoint {sound.name!r} before it")
