"""What the end of a handler means: a value or an exception in, an answer for the decision out. Pure.

Only what was declared counts as "nothing happened"; every odd end is an answer too, and it is "nobody knows": an
undeclared exception, `sys.exit`, a generator, an awaitable where a value is wanted, an answer of another question.
"""

from __future__ import annotations

import inspect

from amends.compensators.effects import (
    CallAnswer,
    Comparison,
    IsStillThere,
    IsUndone,
    NobodyKnows,
    NotBegun,
    NotDeployed,
    ProbeAnswer,
    Refused,
    Succeeded,
    Uncertain,
    VerifyAnswer,
)
from amends.schemas.facts import ACCEPTED, Decision, Failure
from amends.schemas.payload import encode_bounded
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
from amends.tools.errors import ArgumentsDoNotFit, CannotResend, NoHandler
from amends.tools.handlers import Handler, is_one_of, qualified_name

Answer = CallAnswer | VerifyAnswer | Comparison | ProbeAnswer

MESSAGE_CHARACTERS_MAX = 500
EVIDENCE_CHARACTERS_MAX = 1_000
IDS_MAX = 100
OUTPUT_BYTES_MAX = 8_192
"""Of what an undo returns: it is kept for people."""


def words_of(value: object, characters_max: int) -> str:
    """Return what a handler said as text that a record can hold. Saying it may be arbitrary code."""
    try:
        words = str(value)
    except BaseException as worse:
        words = f"(no words: {type(worse).__name__})"
    return words[:characters_max].encode("utf-8", "replace").decode()


def _evidence(value: object) -> str:
    return words_of(value, EVIDENCE_CHARACTERS_MAX)


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a record."""
    return Failure(qualified_name(type(error)), words_of(error, MESSAGE_CHARACTERS_MAX))


def odd_end_of(value: object) -> Failure | None:
    """Return what is wrong with a returned value that is no answer at all, or None."""
    if inspect.iscoroutine(value):
        value.close()
        return Failure("amends.OddEnd", "it returned a coroutine, which was not run: declare it with `async def`")
    if inspect.isawaitable(value):
        return Failure("amends.OddEnd", "it returned an awaitable where a value is wanted")
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return Failure("amends.OddEnd", "it is a generator, whose body may not have run: return, don't yield")
    if isinstance(value, BaseException):
        return Failure("amends.OddEnd", f"it returned an exception ({type(value).__name__}) instead of raising it")
    return None


# --- undo -----------------------------------------------------------------------------------------------------------


def undo_answer(value: object) -> CallAnswer:
    """Return what an undo's value says. A plain one, None included: it ran to its end, so the effect is undone."""
    odd = odd_end_of(value)
    if odd is not None:
        return Uncertain(odd)
    match value:
        case Undone(evidence=evidence):
            return Succeeded(evidence=_evidence(evidence))
        case AlreadyUndone(evidence=evidence):
            return Succeeded(evidence=_evidence(evidence or "it was undone before"))
        case NothingToUndo(evidence=evidence):
            return Succeeded(nothing=True, evidence=_evidence(evidence))
        case NotUndone():
            error = Failure("amends.NotUndone", words_of(value.reason, MESSAGE_CHARACTERS_MAX))
            return Refused(error, bool(value.retryable), bool(value.key_refused))
        case Accepted(evidence=evidence):
            return Uncertain(taken_for_later(evidence))
        case StillThere(evidence=evidence) | Unknown(evidence=evidence):
            return Uncertain(Failure("amends.NotYet", _evidence(evidence or f"it answered {type(value).__name__}")))
        case Present() | Absent():
            return Uncertain(Failure("amends.OddEnd", f"it answered {type(value).__name__}, which is a probe's answer"))
        case None:
            return Succeeded()
        case _:
            return Succeeded(output_payload=encode_bounded(value, OUTPUT_BYTES_MAX).data)


def taken_for_later(evidence: str) -> Failure:
    """Return how it is recorded that a remote took a request, to do it later."""
    return Failure(ACCEPTED, words_of(evidence or "the remote took it and does it later", MESSAGE_CHARACTERS_MAX))


def undo_error(handler: Handler, error: BaseException) -> CallAnswer:
    if isinstance(error, ArgumentsDoNotFit):
        return NotDeployed(failure_of(error))
    if is_one_of(error, handler.refused_for_good_by):
        return Refused(failure_of(error), retryable=False)
    if is_one_of(error, handler.refused_by):
        return Refused(failure_of(error), retryable=True)
    return Uncertain(failure_of(error))


# --- verify, probe, call --------------------------------------------------------------------------------------------


def verify_answer(value: object) -> VerifyAnswer:
    odd = odd_end_of(value)
    if odd is not None:
        return NobodyKnows(odd)
    match value:
        case Undone(evidence=evidence) | AlreadyUndone(evidence=evidence) | NothingToUndo(evidence=evidence):
            return IsUndone(_evidence(evidence))
        case StillThere(evidence=evidence):
            return IsStillThere(_evidence(evidence))
        case Unknown(evidence=evidence):
            return NobodyKnows(evidence=_evidence(evidence))
        case _:
            return NobodyKnows(_no_answer(value, "Undone, StillThere or Unknown"))


def odd_capture(value: object) -> NobodyKnows | None:
    """Return why what a capture returned is nothing that was read, or None: any value is what it found."""
    odd = odd_end_of(value)
    return None if odd is None else NobodyKnows(odd)


def probe_answer(value: object, output_bytes_max: int) -> ProbeAnswer:
    """Return what a probe's value says; the undo's arguments are resolved by who has the contract."""
    odd = odd_end_of(value)
    if odd is not None:
        return ProbeAnswer(Decision.UNKNOWN, error=odd)
    match value:
        case Present():
            output = encode_bounded(value.output, output_bytes_max).data
            given = list(value.external_resource_ids.items())[:IDS_MAX]
            ids = {words_of(k, MESSAGE_CHARACTERS_MAX): words_of(v, MESSAGE_CHARACTERS_MAX) for k, v in given}
            return ProbeAnswer(Decision.PRESENT, _evidence(value.evidence), output, external_resource_ids=ids)
        case Absent(evidence=evidence):
            return ProbeAnswer(Decision.ABSENT, _evidence(evidence))
        case Unknown(evidence=evidence):
            return ProbeAnswer(Decision.UNKNOWN, _evidence(evidence))
        case _:
            return ProbeAnswer(Decision.UNKNOWN, error=_no_answer(value, "Present, Absent or Unknown"))


def call_answer(value: object, output_bytes_max: int) -> CallAnswer:
    odd = odd_end_of(value)
    return Uncertain(odd) if odd is not None else Succeeded(output_payload=encode_bounded(value, output_bytes_max).data)


def call_error(refused: bool, error: BaseException) -> CallAnswer:
    if isinstance(error, CannotResend | ArgumentsDoNotFit | NoHandler):
        return NotDeployed(failure_of(error))
    return Refused(failure_of(error)) if refused else Uncertain(failure_of(error))


def _no_answer(value: object, wanted: str) -> Failure:
    return Failure("amends.OddEnd", f"it answered {type(value).__name__} where {wanted} is wanted")


# --- not run, or cut ------------------------------------------------------------------------------------------------


def uncertain(role_asks: str, failure: Failure) -> Answer:
    """Return "nobody knows" in the words of the question: `undo` and `forward`, `verify` and `capture`, or `probe`."""
    match role_asks:
        case "verify" | "capture":
            return NobodyKnows(failure)
        case "probe":
            return ProbeAnswer(Decision.UNKNOWN, error=failure)
        case _:
            return Uncertain(failure)


def not_begun(role_asks: str, reason: str) -> Answer:
    failure = Failure("amends.NotBegun", reason)
    return NotBegun(reason) if role_asks in ("undo", "forward") else uncertain(role_asks, failure)


def not_deployed(role_asks: str, failure: Failure) -> Answer:
    return NotDeployed(failure) if role_asks in ("undo", "forward") else uncertain(role_asks, failure)
