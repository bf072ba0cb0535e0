"""Which decisions of a person change anything about an incident, by its kind: for who asks and for who takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from amends.schemas.facts import Decision

_BY_HAND = (Decision.MARK_UNDONE, Decision.ACCEPT_LOSS)

DECISIONS: Mapping[str, tuple[Decision, ...]] = MappingProxyType(
    {
        "undo_failed": (Decision.RETRY, *_BY_HAND),
        "changed_since": (Decision.RETRY, *_BY_HAND),
        "unknown": (Decision.PRESENT, Decision.MARK_ABSENT, *_BY_HAND),
        "irreversible": _BY_HAND,
        "unclassified": _BY_HAND,
        "no_undo": _BY_HAND,
        "arguments_missing": _BY_HAND,
        "unreadable": (Decision.MARK_ABSENT,),
    }
)
"""Kinds that are not here close by themselves, or are there to be known."""


def decisions_for(kind: str) -> tuple[Decision, ...]:
    """Return the decisions that an incident of `kind` takes; none for a kind that no decision closes."""
    return DECISIONS.get(kind, ())


def word_of(decision: Decision) -> str:
    """Return a decision as the command line spells it: `mark-undone`."""
    return decision.value.replace("_", "-")


def command_for(incident_id: str, kind: str) -> str:
    """Return the command by which a person decides this incident and the decisions it takes, "" if it takes none."""
    words = ", ".join(word_of(decision) for decision in decisions_for(kind))
    command = f"amends incidents resolve {incident_id[:8]} --decision DECISION --reason TEXT"
    return f"{command} (DECISION: {words})" if words else ""
