"""How facts of a family name each other: attributes of WorkflowEvents, texts of whole numbers.

A parent announces a child by CHILD_STARTED on its own key. Where that stands names the child among all that the parent
ever announced, be it under one id: the child's STARTED, the parent's requests and the child's answers carry it.
"""

from __future__ import annotations

from amends.schemas.facts import UNKNOWN_OFFSET, WorkflowEvent

CHILD_STARTED_OFFSET = "child_started_offset"
"""On the child's STARTED, a parent's ROLLBACK_REQUESTED, and CHILD_CLOSED: where CHILD_STARTED stands."""
SINCE_MS = "since_ms"
"""On a parent's ROLLBACK_REQUESTED: append time of the first CHILD_STARTED of this child id."""
AS_OF = "as_of"
"""On CHILD_CLOSED: the place of the child's partition as of which it is true."""


def number_of(fact: WorkflowEvent, name: str) -> int:
    """Return the attribute `name`; UNKNOWN_OFFSET if it is missing or no whole number."""
    text = fact.attributes.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else UNKNOWN_OFFSET
