"""Which decisions of a person change anything about an incident, by its kind: for who asks and for who takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from amends.schemas.facts import Decision

_BY_HAND = (Decision.MARK_UNDONE, Decision.ACCEPT_LOSS)

BREAKER_OPEN = "breaker_open"
"""Kind of the incident of a tool that is left alone, in whichever partition."""

DECISIONS: Mapping[str, tuple[Decision, ...]] = MappingProxyType(
    {
        "undo_failed": (Decision.RETRY, Decision.EDIT_ARGS, *_BY_HAND),
        "changed_since": (Decision.RETRY, *_BY_HAND),
        "unknown": (Decision.PRESENT, Decision.MARK_ABSENT, *_BY_HAND),
        "irreversible": _BY_HAND,
        "unclassified": _BY_HAND,
        "no_undo": _BY_HAND,
        "arguments_missing": (Decision.EDIT_ARGS, *_BY_HAND),
        "window_closed": (Decision.RETRY, Decision.EDIT_ARGS, *_BY_HAND),
        "window_closing": _BY_HAND,
        "child_waits": (Decision.RETRY, *_BY_HAND),
        "unreadable": (Decision.MARK_ABSENT,),
        BREAKER_OPEN: (Decision.RETRY,),
    }
)
"""Rulings on an undo, a call, or a record."""

ACKNOWLEDGED = frozenset(
    {
        "contradiction",
        "effect_after_success",
        "failed_after_success",
        "stray",
        "poisoned",
        "savepoint_unknown",
        "policy_unreadable",
        "agent_failed",
        "child_gone",
        "not_approved",
    }
)
"""Kinds that nothing waits for: a person says that he knows. Either he has put it right (`mark_undone`) or it stands as
it is (`accept_loss`). Kinds that are neither here nor above close by themselves."""

KIND = "incident_kind"
"""Attribute of a Resolution that acknowledges: the kind of the incident, whose workflow and step the fact names."""

TOOL_MENDED = "tool"
"""Attribute of a Resolution that is about no workflow: the tool that works again, a person says (`mended_key`)."""


def decisions_for(kind: str) -> tuple[Decision, ...]:
    """Return the decisions that an incident of `kind` takes; none for a kind that no decision closes."""
    return _BY_HAND if kind in ACKNOWLEDGED else DECISIONS.get(kind, ())


def word_of(decision: Decision) -> str:
    """Return a decision as the command line spells it: `mark-undone`."""
    return decision.value.replace("_", "-")


def command_for(incident_id: str, kind: str) -> str:
    """Return the command by which a person decides this incident and the decisions it takes, "" if it takes none."""
    if kind == "approval":
        return f"amends approvals show {incident_id[:8]}"
    words = ", ".join(word_of(decision) for decision in decisions_for(kind))
    command = f"amends incidents resolve {incident_id[:8]} --decision DECISION --reason TEXT"
    return f"{command} (DECISION: {words})" if words else ""
