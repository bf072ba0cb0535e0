"""Errors an agent can meet.

Each says whose fault it is, what happened to the effect of the call, whether it is safe to try again, and what to do.
What a tool itself raises passes through untouched and is none of these. All survive pickling, so that they can cross a
process pool or a task queue.
"""

# ruff: noqa: N818 - the names say what is the case, not that an error occurred
from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Fault(StrEnum):
    """Who must act."""

    LEDGER = "ledger"  # the brokers, or the way to them
    AGENT = "agent"  # the code that makes the call
    DEVELOPER = "developer"  # who declared the tool
    POLICY = "policy"  # a rule said no
    NOBODY = "nobody"  # it is how things stand: wait, or stop


class CallEffect(StrEnum):
    """What happened to the effect of the call that met the error."""

    NOT_CALLED = "not called"  # the tool was not called
    UNKNOWN = "unknown"  # an earlier send may have had its effect
    RECORDED = "recorded"  # it is on the ledger, and will be judged there
    NONE = "none"  # there was no call


def _rebuild(kind: type[AmendsError], message: str, details: dict[str, Any]) -> AmendsError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(details)
    return error


class AmendsError(Exception):
    """Base of all errors of amends."""

    whose_fault: ClassVar[Fault] = Fault.NOBODY
    effect: ClassVar[CallEffect] = CallEffect.NONE
    retry_safe: ClassVar[bool] = False
    what_to_do: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message} {self.what_to_do}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class LedgerUnavailable(AmendsError):
    """The intent is certainly not on the ledger, so the tool was not called."""

    whose_fault = Fault.LEDGER
    effect = CallEffect.NOT_CALLED
    retry_safe = True
    what_to_do = "Try again when the brokers answer; nothing was done."


class LedgerUncertain(AmendsError):
    """The intent may be on the ledger; the tool was not called, and the ledger will be told so."""

    whose_fault = Fault.LEDGER
    effect = CallEffect.NOT_CALLED
    retry_safe = True
    what_to_do = "Try again when the brokers answer; the tool was not called."


class WorkflowTurned(AmendsError):
    """This workflow is being undone, or was."""

    effect = CallEffect.NOT_CALLED
    what_to_do = "Stop: what this workflow did is being undone. Start a new workflow for new work."

    def __init__(self, message: str, *, workflow_id: str = "", phase: str = "", epoch: int = -1) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id
        self.phase = phase
        self.epoch = epoch


class EpochEnded(WorkflowTurned):
    """Part of what this workflow did is being undone, or was: calls of before that are over."""

    what_to_do = (
        "Go on with wf.undo_to(savepoint), which waits until nothing is being undone any more and says what is left, "
        "or let this error end the workflow."
    )


class _AboutStep(AmendsError):
    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class AlreadyRunning(_AboutStep):
    """The same call is open, or the same workflow is run by somebody else. `step` names the call."""

    whose_fault = Fault.AGENT
    effect = CallEffect.NOT_CALLED
    what_to_do = "Don't repeat it."


class OutcomeUnknown(_AboutStep):
    """The same call was made and nobody knows whether it happened. `step` names it."""

    whose_fault = Fault.NOBODY
    effect = CallEffect.UNKNOWN
    what_to_do = "Don't repeat it: find out whether it happened, or let the workflow fail and it is cleared up."


class NotApproved(_AboutStep):
    """A person has not approved this call yet, or has rejected it.

    Attributes:
        rejected: a person said no; the same call stays rejected. If not, call again once it was approved.
        by: who said no.
        reason: why, in his words.
    """

    whose_fault = Fault.POLICY
    effect = CallEffect.NOT_CALLED
    what_to_do = ""

    def __init__(self, message: str, *, step: str = "", rejected: bool = False, by: str = "", reason: str = "") -> None:
        super().__init__(message, step=step)
        self.rejected = rejected
        self.by = by
        self.reason = reason


class Rejected(AmendsError):
    """A check before the call said no. `which` names it: size, pre-flight, budget, policy."""

    whose_fault = Fault.POLICY
    effect = CallEffect.NOT_CALLED
    what_to_do = "The tool was not called."

    def __init__(self, message: str, *, which: str = "") -> None:
        super().__init__(message)
        self.which = which


class AlreadyDone(Rejected):
    """The same call was made before and succeeded: `output` is what it gave, `step` names it. Of a tool that declares
    `duplicates="refuse"`, and of a recorder's step that was not asked to `reuse`."""

    def __init__(self, message: str, output: Any = None, *, step: str = "") -> None:
        super().__init__(message, which="already done")
        self.output = output
        self.step = step


class NotConfirmed(AmendsError):
    """The claim of success is written, but no word of the fold came in time. Only with `confirm="raise"`."""

    whose_fault = Fault.LEDGER
    effect = CallEffect.RECORDED
    what_to_do = "Ask for the workflow's status later; don't run it again under another id."


class OutsideWorkflow(AmendsError):
    """A tool that changes the world was called where nothing would undo it."""

    whose_fault = Fault.AGENT
    effect = CallEffect.NOT_CALLED
    what_to_do = (
        'Call it inside `with workflow("an-id"): ...`. In a thread of your own, run it with '
        "`contextvars.copy_context().run(...)`. In tests, `amends.tools.set_testing()` runs tools bare."
    )


class ContractError(AmendsError):
    """A declaration that can't be kept, found before any call. The message names the line and what to change."""

    whose_fault = Fault.DEVELOPER
    effect = CallEffect.NOT_CALLED


class NoHandler(AmendsError):
    """This process has no such handler: its module is not loaded, or the tool was renamed."""

    whose_fault = Fault.DEVELOPER
    effect = CallEffect.NOT_CALLED
    what_to_do = "Load the module that declares the tool, under the name the ledger has."


class ArgumentsDoNotFit(AmendsError):
    """Recorded arguments are not what the handler's parameters take. The handler was not called."""

    whose_fault = Fault.DEVELOPER
    effect = CallEffect.NOT_CALLED
    what_to_do = "Nothing was sent; a person must give the arguments, or the handler's parameters must take these."


class CannotResend(AmendsError):
    """The recorded input is not enough to make the call again: a secret, a bound object, or a part that was cut."""

    whose_fault = Fault.DEVELOPER
    effect = CallEffect.NOT_CALLED
