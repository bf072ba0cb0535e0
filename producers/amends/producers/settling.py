"""What a remote's callback says, as a fact of the ledger. Pure.

Of a call: evidence, which speaks for the attempt that the token names. Of an undo: its end, in the name of the owner of
that attempt, for the token was made inside it. The fold treats both as it treats those of a probe and of a compensator:
what comes twice, late, or for an attempt that is over changes nothing; a contradiction is an incident.
"""

from __future__ import annotations

from amends.schemas.codec import UnreadableRecord, decode_as
from amends.schemas.contract import Contract
from amends.schemas.data_flow import RULES, ids_recorded
from amends.schemas.facts import Decision, Failure, Party, Resolution, StepEvent, UndoEvent, UndoStatus
from amends.schemas.payload import UnreadablePayload, encode_bounded
from amends.tools.answers import (
    Absent,
    Accepted,
    AlreadyUndone,
    NothingToUndo,
    NotUndone,
    Present,
    StillThere,
    Undone,
    Unknown,
)
from amends.tools.callbacks import CallbackToken
from amends.tools.resolve import Resolved, resolve
from amends.tools.step import step_from_facts

CallbackAnswer = Present | Absent | Unknown | Undone | AlreadyUndone | NothingToUndo | NotUndone | StillThere | Accepted
Fact = Resolution | UndoEvent

OUTPUT_BYTES_MAX = 700_000
WORDS_MAX = 1_000


class AnswerUnfit(ValueError):  # noqa: N818 - what it is
    """An answer of another question: an undo's for a call, or a call's for an undo."""


def fact_of(token: CallbackToken, answer: CallbackAnswer, started: StepEvent | None, by: str) -> Fact | None:
    """Return what to write, None if the answer settles nothing.

    Args:
        started: the step's STARTED: with it the undo's arguments are resolved; None where it is not known.
        by: who says it, for people.

    Raises:
        AnswerUnfit: the answer is of another question.
    """
    if token.generation is not None:
        return _of_undo(token, token.generation, answer)
    match answer:
        case Present():
            return _present(token, answer, started, by)
        case Absent(evidence=evidence):
            return _resolution(token, Decision.ABSENT, by, evidence)
        case Unknown() | Accepted():
            return None
        case _:
            raise AnswerUnfit(f"{type(answer).__name__} answers for an undo, and the token is of a call")


def _present(token: CallbackToken, answer: Present, started: StepEvent | None, by: str) -> Resolution:
    output = encode_bounded(answer.output, OUTPUT_BYTES_MAX).data
    ids = {_words(name): _words(value) for name, value in list(answer.external_resource_ids.items())[:100]}
    return Resolution(
        workflow_id=token.workflow_id,
        decision=Decision.PRESENT,
        writer=Party.COMPENSATOR,
        by=by,
        step_id=token.step_id,
        workflow_offset=token.workflow_offset,
        attempts=(token.attempt,),
        evidence=_words(answer.evidence),
        output_payload=output,
        undo_arguments=None if started is None else _undo_arguments(started, answer, ids),
        external_resource_ids=ids,
        data_flow=RULES,
        makes=ids_recorded(output, ids),
    )


def _resolution(token: CallbackToken, decision: Decision, by: str, evidence: str) -> Resolution:
    return Resolution(
        workflow_id=token.workflow_id,
        decision=decision,
        writer=Party.COMPENSATOR,
        by=by,
        step_id=token.step_id,
        workflow_offset=token.workflow_offset,
        attempts=(token.attempt,),
        evidence=_words(evidence),
    )


def _undo_arguments(started: StepEvent, answer: Present, ids: dict[str, str]) -> bytes | None:
    """Resolve them from what is now known, by what was declared when the call was made."""
    if started.contract is None:
        return None
    try:
        contract = decode_as(Contract, started.contract)
        step = step_from_facts(started, None, key="")
    except (UnreadableRecord, UnreadablePayload):
        return None
    found = resolve(
        contract,
        input=step.input,
        output=answer.output,
        captured=step.captured,
        external_resource_ids={**step.external_resource_ids, **ids},
    )
    return found.data if isinstance(found, Resolved) else None


def _of_undo(token: CallbackToken, generation: int, answer: CallbackAnswer) -> UndoEvent | None:
    match answer:
        case Undone(evidence=evidence) | AlreadyUndone(evidence=evidence):
            return _undo_event(token, generation, UndoStatus.UNDONE, evidence)
        case NothingToUndo(evidence=evidence):
            return _undo_event(token, generation, UndoStatus.NOTHING_TO_UNDO, evidence)
        case NotUndone():
            return _undo_event(token, generation, UndoStatus.FAILED, "", answer)
        case StillThere() | Unknown() | Accepted():
            return None
        case _:
            raise AnswerUnfit(f"{type(answer).__name__} answers for a call, and the token is of an undo")


def _undo_event(
    token: CallbackToken, generation: int, status: UndoStatus, evidence: str, refusal: NotUndone | None = None
) -> UndoEvent:
    return UndoEvent(
        workflow_id=token.workflow_id,
        step_id=token.step_id,
        generation=generation,
        attempt=int(token.attempt),
        status=status,
        owner=token.owner,
        workflow_offset=token.workflow_offset,
        retryable=refusal is None or refusal.retryable,
        key_refused=refusal is not None and refusal.key_refused,
        verified=refusal is None,  # it is the remote's own word
        evidence=_words(evidence or "a callback of the remote says so"),
        error=None if refusal is None else Failure("amends.NotUndone", _words(refusal.reason)),
    )


def _words(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()[:WORDS_MAX]
