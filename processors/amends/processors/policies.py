"""The policy of a workflow, as its header keeps it."""

from __future__ import annotations

from amends.processors.state import Header
from amends.schemas.policy import DEFAULT, Policy, UnreadablePolicy, decode_policy

POLICY_BYTES_MAX = 4_096


def kept_policy(data: bytes | None) -> str:
    """Return what the header keeps of a policy as it was sent. Of one too large to be one, so much that it is not read
    either: what nobody can read is told, never left out."""
    return "" if not data else data[:POLICY_BYTES_MAX].decode("utf-8", "replace")


def policy_of(header: Header) -> Policy:
    """Return the policy in force: the default one where it can't be read (`policy_trouble`)."""
    if not header.policy:
        return DEFAULT
    try:
        return decode_policy(header.policy.encode())
    except UnreadablePolicy:
        return DEFAULT


def policy_trouble(header: Header) -> str | None:
    """Return why the policy can't be read, None if it can."""
    try:
        if header.policy:
            decode_policy(header.policy.encode())
    except UnreadablePolicy as error:
        return str(error)
    return None


def finish_due_ms(header: Header) -> int:
    """Return when a workflow past its pivot must be finished, or a person is asked."""
    return header.finishing_since_ms + policy_of(header).finish_within_ms
