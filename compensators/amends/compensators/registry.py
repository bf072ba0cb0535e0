"""The registry: a gate that saves work. It is not the lock; the read back of the ledger is.

Rules (protocol, "The compensator and the registry"):

- One entry per undo key, generation included. It is absent, or CLAIMED, DONE, FAILED or IN_DOUBT for one attempt.
- An owner is one delivery, not a host, so a lost reply may be asked for again and a restarted host is a stranger.
- A claim of a higher attempt always goes, because only the fold grants one. A claim whose lease ran out is taken anew.
- `settle` moves CLAIMED n to an end if the fence is its own. Nothing else makes IN_DOUBT.
- Losing any of it (flush, failover, eviction, no registry at all) costs a lost read back, never a second undo.

One contract suite runs against every implementation: `tests/contract/test_registry.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from amends.schemas.facts import UndoStatus
from amends.schemas.slots import quick

NO_FENCE = -1
"""The fence of a claim that no registry answered. It settles nothing."""


class State(StrEnum):
    CLAIMED = "CLAIMED"
    DONE = "DONE"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"


@quick
@dataclass(frozen=True, slots=True)
class Closing:
    """The outcome that closed an undo, kept so that it can be written to the ledger again."""

    attempt: int
    status: UndoStatus  # UNDONE or NOTHING_TO_UNDO
    owner: str
    verified: bool = False
    evidence: str = ""


@quick
@dataclass(frozen=True, slots=True)
class ClaimRequest:
    key: str
    attempt: int
    owner: str
    lease_ms: int
    group: str = ""  # the workflow: what one call claims has one, and is kept in one place


@quick
@dataclass(frozen=True, slots=True)
class Go:
    """The attempt may be started; whether it is owned, the read back says."""

    fence: int


@quick
@dataclass(frozen=True, slots=True)
class Busy:
    """Another delivery holds this attempt and its lease has not run out."""


@quick
@dataclass(frozen=True, slots=True)
class Ended:
    """This attempt has ended, or a later one was claimed."""


@quick
@dataclass(frozen=True, slots=True)
class Done:
    """The registry remembers the undo as done. The read back decides whether this ledger does too."""

    closing: Closing


ClaimAnswer = Go | Busy | Ended | Done


class Registry(Protocol):
    """What every registry promises. No verb raises because the registry is out of reach."""

    async def claim(self, requests: tuple[ClaimRequest, ...]) -> tuple[ClaimAnswer, ...]:
        """Claim in order and stop after the first that is neither `Go` nor `Done`.

        The answers are therefore as many as the requests, or fewer. Out of reach, all are `Go(NO_FENCE)`.
        """
        ...

    async def renew(self, key: str, attempt: int, fence: int, lease_ms: int, group: str = "") -> bool:
        """Move the lease of one's own claim to `lease_ms` from now. False: it is not one's own any more."""
        ...

    def settle(
        self, key: str, attempt: int, fence: int, state: State, closing: Closing | None, group: str = ""
    ) -> Awaitable[bool]:
        """Move one's own claim to an end. `closing` is given with DONE and only then. False: it is not one's own."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class _Entry:
    state: State
    attempt: int
    owner: str
    fence: int
    lease_ends_at_ms: int
    closing: Closing | None = None


class MemoryRegistry:
    """A registry in this process, for tests, the simulation and a single machine."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: dict[str, _Entry] = {}
        self._fence = 0

    async def claim(self, requests: tuple[ClaimRequest, ...]) -> tuple[ClaimAnswer, ...]:
        return self.claim_now(requests)

    def claim_now(self, requests: tuple[ClaimRequest, ...]) -> tuple[ClaimAnswer, ...]:
        """The same without a loop, for the simulation."""
        answers: list[ClaimAnswer] = []
        for request in requests:
            answers.append(self._claim(request))
            if not isinstance(answers[-1], Go | Done):
                break
        return tuple(answers)

    def _claim(self, request: ClaimRequest) -> ClaimAnswer:
        entry = self._entries.get(request.key)
        if entry is None or (entry.attempt < request.attempt and entry.state is not State.DONE):
            return self._take(request)
        if entry.state is State.DONE:
            assert entry.closing is not None
            return Done(entry.closing)
        if entry.attempt > request.attempt or entry.state is not State.CLAIMED:
            return Ended()
        if entry.owner == request.owner:
            return Go(entry.fence)
        return Busy() if self._now_ms() < entry.lease_ends_at_ms else self._take(request)

    def _take(self, request: ClaimRequest) -> Go:
        self._fence += 1
        ends_at_ms = self._now_ms() + request.lease_ms
        self._entries[request.key] = _Entry(State.CLAIMED, request.attempt, request.owner, self._fence, ends_at_ms)
        return Go(self._fence)

    async def renew(self, key: str, attempt: int, fence: int, lease_ms: int, group: str = "") -> bool:
        return self.renew_now(key, attempt, fence, lease_ms)

    def renew_now(self, key: str, attempt: int, fence: int, lease_ms: int) -> bool:
        entry = self._own(key, attempt, fence)
        if entry is None:
            return False
        self._entries[key] = replace(entry, lease_ends_at_ms=self._now_ms() + lease_ms)
        return True

    async def settle(
        self, key: str, attempt: int, fence: int, state: State, closing: Closing | None, group: str = ""
    ) -> bool:
        return self.settle_now(key, attempt, fence, state, closing)

    def settle_now(self, key: str, attempt: int, fence: int, state: State, closing: Closing | None) -> bool:
        assert (state is State.DONE) == (closing is not None)
        assert state is not State.CLAIMED
        entry = self._own(key, attempt, fence)
        if entry is None:
            return False
        self._entries[key] = replace(entry, state=state, closing=closing)
        return True

    def _own(self, key: str, attempt: int, fence: int) -> _Entry | None:
        entry = self._entries.get(key)
        own = entry is not None and entry.state is State.CLAIMED and (entry.attempt, entry.fence) == (attempt, fence)
        return entry if own else None

    def flush(self) -> None:
        """Forget everything, as a flushed or failed-over Redis does. Fences go on rising."""
        self._entries.clear()


class NoRegistry:
    """No registry at all: every claim goes, and the read back decides."""

    async def claim(self, requests: tuple[ClaimRequest, ...]) -> tuple[ClaimAnswer, ...]:
        return tuple(Go(NO_FENCE) for _ in requests)

    async def renew(self, key: str, attempt: int, fence: int, lease_ms: int, group: str = "") -> bool:
        return False

    async def settle(
        self, key: str, attempt: int, fence: int, state: State, closing: Closing | None, group: str = ""
    ) -> bool:
        return False
