"""The ladder an UNKNOWN step climbs, from `settle_ms` after its last attempt ended.

probe -> re-send with the same key (only of a condemned step) -> undo as it is, if naturally idempotent or comparing ->
incident.

A step that is PRESENT but whose undo arguments need an output nobody has seen climbs the second rung too.
A remote that took the request and does it later (202) is polled: its probe is asked, backing off, until the remote may
take no longer, whatever the count; only then the next rung.

An irreversible call is never sent again. Neither is one whose undo compares: it would write over what somebody else
wrote since, and the comparison tells by itself whether there is anything to undo.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from amends.processors.state import (
    NOWHERE,
    AttemptState,
    Standing,
    Step,
    arguments_of,
    asked_from_ms,
    is_key_remembered,
    settles_at_ms,
)
from amends.schemas.contract import COMPARE, Contract, Effect, Idempotency

RESENDS_MAX = 3
"""Re-sends that were made and brought no answer; after them the next rung."""
ATTEMPTS_MAX = 24
"""Attempts of a step, those that were given up before the call included: so that no ladder is endless."""
NO_RESEND = "no_resend"
"""Attribute of a contract whose call can't be made again from its intent: a secret argument, a method's object."""


class Rung(StrEnum):
    PROBE = "probe"
    RESEND = "resend"
    UNDO = "undo"
    INCIDENT = "incident"


@dataclass(frozen=True, slots=True)
class Climb:
    """The next rung of a step, and when it may be taken."""

    rung: Rung
    at_ms: int


def climb(step: Step, what: Standing, contract: Contract | None, *, condemned: bool, now_ms: int) -> Climb:
    """Return the rung that `step`, of which `what` is owed, stands on."""
    settled_ms = settles_at_ms(step, contract)
    if contract is None:
        return Climb(Rung.INCIDENT, settled_ms)
    if what is Standing.UNKNOWN and contract.probe is not None:
        ask_at_ms = max(asked_from_ms(step, contract), _probe_again_ms(step, contract))
        if step.probes < contract.probe.attempts_max or max(ask_at_ms, now_ms) < settled_ms:
            return Climb(Rung.PROBE, ask_at_ms)
    if condemned and _can_resend(step, contract, now_ms):
        return Climb(Rung.RESEND, max(settled_ms, _resend_again_ms(step, contract)))
    if (
        condemned
        and what is Standing.UNKNOWN
        and arguments_of(step) is not None
        and contract.undo is not None
        and (contract.undo.idempotency is Idempotency.NATURAL or contract.restores == COMPARE)
        and contract.effect is not Effect.IRREVERSIBLE
    ):
        return Climb(Rung.UNDO, settled_ms)
    return Climb(Rung.INCIDENT, settled_ms)


def span_of(step: Step, contract: Contract | None, now_ms: int) -> tuple[int, int | None]:
    """Return the span of time around `now_ms` in which `climb` answers the same of a step that doesn't change: from
    when on (0: ever), and before when (None: for ever)."""
    turns = [settles_at_ms(step, contract)]
    if contract is not None and contract.call.key_reusable_ms is not None:
        turns.append(step.first_at_ms + contract.call.key_reusable_ms)
    since = max((at_ms for at_ms in turns if at_ms <= now_ms), default=0)
    return since, min((at_ms for at_ms in turns if at_ms > now_ms), default=None)


def last_end_offset(step: Step) -> int:
    """Where the last of the step's attempts ended: the fact that arms the ladder's timer."""
    return max((attempt.ended_offset for attempt in step.attempts), default=NOWHERE)


def _can_resend(step: Step, contract: Contract, now_ms: int) -> bool:
    if contract.effect is Effect.IRREVERSIBLE or contract.undo is None or step.resends >= RESENDS_MAX:
        return False
    if NO_RESEND in contract.attributes or contract.restores == COMPARE or len(step.attempts) >= ATTEMPTS_MAX:
        return False
    call = contract.call
    return call.idempotency is Idempotency.NATURAL or is_key_remembered(call, step.first_at_ms, now_ms)


def _resend_again_ms(step: Step, contract: Contract) -> int:
    """A re-send that was given up before its call waits: commands still in the lane are void by its STARTED, and each
    of them would void the next one if that were sent at once."""
    given_up = (a.ended_at_ms for a in step.attempts if a.state is AttemptState.NOT_EXECUTED)
    last = max(given_up, default=None)
    return 0 if last is None else last + contract.call.settle_ms


def _probe_again_ms(step: Step, contract: Contract) -> int:
    if step.probes == 0 or contract.probe is None:
        return 0
    wait_ms = min(contract.probe.backoff_cap_ms, contract.probe.backoff_ms * 2 ** min(step.probes - 1, 30))
    return step.probed_at_ms + int(wait_ms)
