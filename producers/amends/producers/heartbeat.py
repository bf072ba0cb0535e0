"""The heart: one thread of a process that says that its agents are alive, and writes again what they owe.

A thread of its own, because a tool that blocks the event loop, or a model that thinks for minutes, is not a dead agent.
"""

from __future__ import annotations

import logging
import threading

from amends.producers import clock
from amends.producers.ledger import Ledger
from amends.producers.scope import Scope

logger = logging.getLogger(__name__)

LOOKS_PER_LEASE = 12
"""A heartbeat is due after a third of a lease; it is then sent within a twelfth."""

INTERVAL_MIN_MS = 20
INTERVAL_MAX_MS = 500  # what is owed is tried again this often


class Heart:
    """Looks after scopes until they are idle. Made when first needed; its thread is a daemon."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._scopes: set[Scope] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._interval_ms = INTERVAL_MAX_MS
        self._stopped = False

    def add(self, scope: Scope) -> None:
        """Look after `scope` from now on."""
        with self._lock:
            self._scopes.add(scope)
            first = len(self._scopes) == 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="amends-heart", daemon=True)
                self._thread.start()
        if first:
            self._wake.set()
        self.hurry(scope.terms.lease_ms)

    def remove(self, scope: Scope) -> None:
        """Look after it no longer."""
        with self._lock:
            self._scopes.discard(scope)
        scope.forget()

    def hurry(self, lease_ms: int) -> None:
        """Take into account that something has a lease of `lease_ms`. Cheap where the heart is fast enough."""
        if lease_ms < self._interval_ms * LOOKS_PER_LEASE:
            self._interval_ms = max(INTERVAL_MIN_MS, lease_ms // LOOKS_PER_LEASE)
            self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped:
            with self._lock:
                scopes = tuple(self._scopes)
            self._wake.wait(self._interval_ms / 1000 if scopes else None)
            self._wake.clear()
            for scope in scopes:
                try:
                    self._look_after(scope)
                except Exception:  # one scope's bug must not let all the others' agents look dead
                    logger.exception("heartbeat of workflow %s", scope.terms.workflow_id)
            leases = [scope.shortest_lease_ms() for scope in scopes]
            shortest_ms = min(leases, default=INTERVAL_MAX_MS * LOOKS_PER_LEASE) // LOOKS_PER_LEASE
            self._interval_ms = min(INTERVAL_MAX_MS, max(INTERVAL_MIN_MS, shortest_ms))

    def _look_after(self, scope: Scope) -> None:
        for fact in scope.beats(clock.elapsed_ms(), clock.wall_ms()):
            self._ledger.send(fact, scope.beaten)
        scope.owe_again()
        if scope.idle():
            self.remove(scope)
