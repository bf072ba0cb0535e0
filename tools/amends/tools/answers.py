"""What handlers answer. `evidence` is one line for people: what was seen that proves it. It must hold no secret.

A handler that raises what it did not declare, or returns something else than these, has said nothing: UNKNOWN. Only an
undo may return plain values, and None: it ran to its end, so its effect is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Present:
    """The call happened. `output` is what it returned or would have; the undo's arguments are resolved from it."""

    output: Any = None
    external_resource_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Absent:
    """The call did not happen, by the word of who must know. Not "I did not find it": that is Unknown."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell yet. It is asked again, within bounds."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Undone:
    """The effect is gone."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class AlreadyUndone:
    """Somebody undid it before: a success."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class NothingToUndo:
    """There is no effect: a success. A later effect of the same step opens the undo again."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class StillThere:
    """The effect still stands. From a verify: the undo did not take. From an undo: it can't tell yet; look again."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The remote took the undo and does it later (202). Nothing is sent again while it may be at it (`done_within`):
    `verify` is asked, or a callback says that it took."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class NotUndone:
    """The undo certainly had no effect. `key_refused`: the remote will give this answer to this key for ever."""

    reason: str
    retryable: bool = True
    key_refused: bool = False


ProbeAnswer = Present | Absent | Unknown
VerifyAnswer = Undone | AlreadyUndone | NothingToUndo | StillThere | Unknown
UndoAnswer = Undone | AlreadyUndone | NothingToUndo | StillThere | Unknown | Accepted | NotUndone
