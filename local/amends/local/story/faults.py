"""Fault switches of the story's services: a call can be refused, find the service down, or be held after (or before)
its effect.

A switch is set over HTTP (`POST /faults`) for one call, written as method and path pattern, and for a number of times.
A held call stays unanswered until it is let go (`DELETE /held`): then its connection is closed without an answer, as
when a network cuts.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Fault = Literal["refuse", "down", "hang_before_effect", "hang_after_effect"]
FAULTS: tuple[str, ...] = get_args(Fault)

LOOPBACK = "127.0.0.1"

HELD_MAX_S = 600.0


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that waits in vain. `peer_host` and `peer_port` are the caller's: they tell which process is waiting."""

    call: str
    fault: str
    peer_port: int
    key: str
    peer_host: str = LOOPBACK


class FaultSwitches:
    """The switches of one service; used from many request threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: dict[str, tuple[str, int]] = {}
        self._held: dict[int, HeldCall] = {}
        self._let_go = threading.Event()

    def set(self, call: str, fault: str, times: int) -> None:
        """Arm `fault` for the next `times` calls. Raises ValueError for a fault that does not exist."""
        if fault not in FAULTS:
            raise ValueError(f"no such fault: {fault!r}; there are {', '.join(FAULTS)}")
        with self._lock:
            self._armed[call] = (fault, times)

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    def next_for(self, call: str) -> str | None:
        """Return the fault this call meets, and count it."""
        with self._lock:
            fault, times = self._armed.get(call, ("", 0))
            if times <= 0:
                return None
            self._armed[call] = (fault, times - 1)
            return fault

    def hold(self, held: HeldCall) -> None:
        """Block until the held calls are let go."""
        with self._lock:
            waits = self._let_go
            self._held[id(held)] = held
        waits.wait(HELD_MAX_S)
        with self._lock:
            self._held.pop(id(held), None)

    def held(self) -> list[dict[str, str | int]]:
        with self._lock:
            return [asdict(call) for call in self._held.values()]

    def let_go(self) -> None:
        """Let every call held now go; later ones are held anew."""
        with self._lock:
            self._let_go.set()
            self._let_go = threading.Event()
