"""What is done about failure, per workflow, as data: it travels in the workflow's STARTED and the fold keeps it.

What concerns one tool alone stands in its contract (`failed_calls_max`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any


class FailedBy(StrEnum):
    """What may count as the failure of a workflow. A false claim of success and a spent budget always do, and so does
    whoever asks for undoing."""

    ERROR = "error"  # the agent says that it failed
    SILENCE = "silence"  # its lease ran out
    DEADLINE = "deadline"


class Around(StrEnum):
    """What is done with the steps that one which waits for a person was built on."""

    GO_ON = "go_on"
    HALT = "halt"  # they wait, too


class PastPivot(StrEnum):
    """What a failure does once an irreversible call was made, or may have been."""

    UNDO = "undo"
    FINISH = "finish"  # nothing is undone: the workflow stays open for another agent, which resumes and finishes it


@dataclass(frozen=True, slots=True)
class Policy:
    """How a workflow takes failure. The default is the strictest that needs no person.

    Attributes:
        failed_calls_max: calls that may fail in one epoch; one more turns the workflow. None: any number.
        failed_by: what counts as a failed workflow; what does not is an incident, and the workflow goes on.
        around_waiting: what is done around an undo that was given up on or that no machine may do.
        before_irreversible: the same, where it is an irreversible call that waits: `halt` leaves what came before it
            alone until a person has decided on it.
        past_pivot: what a failure does once an irreversible call was made.
        finish_attempts_max: failures past the pivot after which a person is asked.
        finish_within_ms: after the first failure past the pivot; then a person is asked.
        parallel_undos: what was not built on one another is undone side by side; False: one after the other, the last
            step first.
    """

    failed_calls_max: int | None = None
    failed_by: frozenset[FailedBy] = frozenset(FailedBy)
    around_waiting: Around = Around.GO_ON
    before_irreversible: Around = Around.GO_ON
    past_pivot: PastPivot = PastPivot.UNDO
    finish_attempts_max: int = 3
    finish_within_ms: int = 24 * 3_600_000
    parallel_undos: bool = True

    def __post_init__(self) -> None:
        for name in ("failed_calls_max", "finish_attempts_max", "finish_within_ms"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"policy: {name} is a number, 0 or more, not {value!r}")
        if not isinstance(self.parallel_undos, bool):
            raise TypeError(f"policy: parallel_undos is True or False, not {self.parallel_undos!r}")


DEFAULT = Policy()


class UnreadablePolicy(ValueError):  # noqa: N818 - it says what is the case
    """Not a policy, or one of a version that has more to say than this one understands."""


def encode_policy(policy: Policy) -> bytes:
    """Return the policy as a JSON object that holds what differs from the default."""
    values = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in asdict(policy).items()
        if value != getattr(DEFAULT, name)
    }
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()


@lru_cache(maxsize=1_024)
def decode_policy(data: bytes) -> Policy:
    """Return what `encode_policy` was given.

    Raises:
        UnreadablePolicy: it says something that this version does not know: to leave it out would be a silent default.
    """
    try:
        values: dict[str, Any] = json.loads(data)
        unknown = sorted(set(values) - {f.name for f in fields(Policy)})
        if unknown:
            raise UnreadablePolicy(f"a policy with {', '.join(unknown)}, of which this version knows nothing")
        if "failed_by" in values:
            values["failed_by"] = frozenset(FailedBy(each) for each in values["failed_by"])
        for name in ("around_waiting", "before_irreversible"):
            if name in values:
                values[name] = Around(values[name])
        if "past_pivot" in values:
            values["past_pivot"] = PastPivot(values["past_pivot"])
        return Policy(**values)
    except UnreadablePolicy:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadablePolicy(f"a policy that can't be read: {error}") from error
