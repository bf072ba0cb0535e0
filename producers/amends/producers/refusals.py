"""Why a call is not made: the words of every refusal, in one place."""

from __future__ import annotations

from amends.producers.effects import Pending, Repeated, Standing, Unwritten, Write
from amends.schemas.commands import Phase, ToldApproval
from amends.schemas.facts import Failure
from amends.schemas.payload import decode_payload
from amends.tools.errors import (
    AlreadyDone,
    AlreadyRunning,
    AmendsError,
    EpochEnded,
    LedgerUnavailable,
    LedgerUncertain,
    NotApproved,
    NotConfirmed,
    OutcomeUnknown,
    Rejected,
    WorkflowTurned,
)

TURNED = frozenset({Phase.TURNED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})
ENDED = frozenset({Phase.SUCCEEDED, Phase.COMPENSATED, Phase.CLOSED_WITH_LOSS})


def no_processor(workflow_id: str, waited_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"workflow {workflow_id!r}: no processor answered its start within {waited_ms} ms. Nothing was called. "
        "Is `amends processor` running on this ledger, with the same topics?"
    )


def still_owed(workflow_id: str, waited_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"workflow {workflow_id!r}: the outcome of an earlier call could not be written for {waited_ms} ms. The tool "
        "was not called; the earlier outcome is kept until it is written."
    )


def not_written(subject: str, write: Write) -> AmendsError:
    if isinstance(write, Unwritten):
        return LedgerUnavailable(
            f"{subject}: the intent could not be written to the ledger ({write.reason}). The tool was not called."
        )
    reason = getattr(write, "reason", "")
    return LedgerUncertain(
        f"{subject}: the ledger did not say whether it has the intent ({reason}). The tool was not called; that it "
        "was not is written as soon as the ledger is back."
    )


def record_too_large(subject: str, write: Unwritten) -> AmendsError:
    return Rejected(
        f"{subject}: the ledger does not take a record of this size ({write.reason}). Pass a reference to the "
        "data in place of the data, or raise the topic's max.message.bytes.",
        which="size",
    )


def turned(workflow_id: str, standing: Standing, what: str) -> AmendsError:
    if standing.phase is Phase.RUNNING:
        return epoch_ended(workflow_id, standing, what)
    story = f" {standing.story}" if standing.story else ""
    return WorkflowTurned(
        f"workflow {workflow_id!r} is {standing.phase}, epoch {standing.epoch}: {what}{story}",
        workflow_id=workflow_id,
        phase=standing.phase.value,
        epoch=standing.epoch,
    )


def epoch_ended(workflow_id: str, standing: Standing, what: str) -> AmendsError:
    return EpochEnded(
        f"workflow {workflow_id!r} has gone over to epoch {standing.epoch} without its agent: {what} {standing.story}",
        workflow_id=workflow_id,
        phase=standing.phase.value,
        epoch=standing.epoch,
    )


def no_savepoint(workflow_id: str, name: str, known: tuple[str, ...]) -> AmendsError:
    there = ", ".join(repr(each) for each in known) or "none"
    return Rejected(
        f"workflow {workflow_id!r} has no savepoint {name!r}: nothing was undone. It has: {there}.", which="savepoint"
    )


def still_unwinding(workflow_id: str, name: str, waited_ms: int) -> AmendsError:
    return NotConfirmed(
        f"workflow {workflow_id!r}: its undoing to savepoint {name!r} was asked for, and was not closed within "
        f"{waited_ms} ms. It goes on. Wait for it again with wf.undo_to({name!r}); till then calls are refused."
    )


def resumed_while_unwinding(workflow_id: str, waited_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"workflow {workflow_id!r} is being undone to a savepoint, which did not end within {waited_ms} ms. Nothing "
        "was called. Resume it once that is closed."
    )


def finished(workflow_id: str, standing: Standing) -> AmendsError:
    return Rejected(
        f"workflow {workflow_id!r} is {standing.phase}: its agent has claimed success, and a finished workflow makes "
        "no new calls. Begin a new workflow under another id."
    )


def exists(workflow_id: str, standing: Standing) -> AmendsError:
    if standing.phase in ENDED:
        return AlreadyRunning(
            f"a workflow {workflow_id!r} was there before and has ended: it is {standing.phase}. Nothing was called "
            "and nothing was changed. Take another id for new work."
        )
    return AlreadyRunning(
        f"a workflow {workflow_id!r} is already there and is {standing.phase}. Nothing was called and nothing was "
        "changed. Wait for its end, take another id, or go on with it: workflow(..., on_existing='resume')."
    )


def child_too_late(workflow_id: str, parent_id: str, lease_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"workflow {workflow_id!r}: half of the lease of its parent {parent_id!r} ({lease_ms} ms) has passed since it "
        "was announced there, so it does not begin any more. Nothing was called. Begin it again; if this machine or "
        "the ledger is slow, give the parent a longer lease."
    )


def other_ledger(workflow_id: str, parent_id: str) -> AmendsError:
    return Rejected(
        f"workflow {workflow_id!r} is begun inside {parent_id!r}, which has another runtime: it can't be told of a "
        "child on another ledger. Give both one runtime; or detached=True, and the child stands alone; or "
        "parent=wf.reference() if both runtimes have the same ledger.",
        which="family",
    )


def slept(subject: str, took_ms: int, lease_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"{subject}: {took_ms} ms passed since its intent was sent, half of its lease of {lease_ms} ms or more, so it "
        "may already count as lost. The tool was not called. For a slow ledger, declare a longer lease."
    )


def pending(subject: str, found: Pending) -> AmendsError:
    if found.open:
        return AlreadyRunning(
            f"{subject}: the same call is open. It was not made a second time: wait for the one under way.",
            step=found.step_id,
        )
    return OutcomeUnknown(
        f"{subject}: whether the same call, made before, took effect is unknown, and its remote would do it twice. It "
        "was not made again. What is unknown is cleared up when the workflow ends.",
        step=found.step_id,
    )


def already_done(subject: str, found: Repeated) -> AmendsError:
    output = None if found.payload is None else decode_payload(found.payload)
    return AlreadyDone(
        f"{subject}: an equal call was made before and succeeded (step {found.step_id}), and its tool declares "
        'duplicates="refuse". Its result is in `.output`. For a second one, on purpose, give '
        '.options(call_id="...") or repeatable=True.',
        output,
        step=found.step_id,
    )


def not_folded(subject: str, waited_ms: int) -> AmendsError:
    return LedgerUnavailable(
        f"{subject}: no processor has seen its intent within {waited_ms} ms, and a call with a strict fence waits for "
        "that. The tool was not called. Is `amends processor` running, and does it keep up?"
    )


def not_approved_yet(subject: str, step_id: str, waited_ms: int) -> AmendsError:
    return NotApproved(
        f"{subject}: a person was asked to approve it (step {step_id}) and has not decided within {waited_ms} ms. "
        "Nothing was called. Make the same call again once it is approved (`amends approvals list`), here or in a "
        "process that resumes the workflow; till then, `wf.leave_open(...)` keeps it.",
        step=step_id,
    )


def not_approved(subject: str, step_id: str, told: ToldApproval) -> AmendsError:
    why = f": {told.reason}" if told.reason else ""
    return NotApproved(
        f"{subject}: {told.by} rejected it{why}. Nothing was called, and the same call stays rejected. Go another way.",
        step=step_id,
        rejected=True,
        by=told.by,
        reason=told.reason,
    )


def approval_not_accepted(subject: str, step_id: str, why: str) -> AmendsError:
    return NotApproved(f"{subject}: {why}. Nothing was called. Make the call again to ask again.", step=step_id)


def result_not_kept(subject: str, step_id: str) -> AmendsError:
    return Rejected(
        f"{subject}: the call was made before and succeeded (step {step_id}), and its result was too large to be "
        "recorded. It was not made again. Have the tool return less, or declare it repeatable.",
        which="result not kept",
    )


def input_too_large(subject: str, size: int, limit: int) -> AmendsError:
    return Rejected(
        f"{subject}: its arguments take {size} bytes on the ledger, at most {limit} are recorded. Pass a "
        "reference to the data in place of the data.",
        which="size",
    )


def not_captured(subject: str, why: Failure) -> AmendsError:
    return Rejected(
        f"{subject}: what it would overwrite could not be read ({why.type}: {why.message}), so it could not be put "
        "back. The tool was not called. Try again once it can be read.",
        which="capture",
    )


def capture_not_recordable(subject: str, why: str) -> AmendsError:
    return Rejected(
        f"{subject}: what it would overwrite can't be recorded: {why}. The tool was not called. Have its capture "
        "return only what the undo puts back, as plain data, or a reference to a copy of it.",
        which="capture",
    )


def another_process(workflow_id: str) -> AmendsError:
    return Rejected(
        f"workflow {workflow_id!r} was opened in another process and was inherited by a fork. "
        "Open it here: workflow(..., on_existing='resume').",
        which="another process",
    )
