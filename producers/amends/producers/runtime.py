"""What all scopes of one process share: settings, the ledger, the heart, and the name of the process instance."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Callable

from amends.producers.heartbeat import Heart
from amends.producers.ledger import Ledger
from amends.producers.scope import Scope
from amends.producers.settings import ProducerSettings


class Runtime:
    """Usable from any thread, and again after a fork: the child is another instance, with an own heart.

    Args:
        ledger: a ledger, or what makes one when it is first needed. The runtime closes it.
    """

    def __init__(self, settings: ProducerSettings, ledger: Ledger | Callable[[], Ledger]) -> None:
        self.settings = settings
        self._given = ledger
        self._begin_instance()
        _RUNTIMES.add(self)

    def _begin_instance(self) -> None:
        self._lock = threading.Lock()
        self._made: Ledger | None = None
        self._heart: Heart | None = None
        self._attempts = itertools.count(1)
        self.instance = f"{os.getpid()}-{secrets.token_hex(6)}"

    @property
    def ledger(self) -> Ledger:
        """The ledger, made when first asked for."""
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._given() if callable(self._given) else self._given
                made = self._made
        return made

    def next_attempt(self) -> str:
        """Return a name for a send, or a scope, that no other of any process has."""
        return f"{self.instance}-{next(self._attempts)}"

    def hurry(self, lease_ms: int) -> None:
        """Have the heart beat fast enough for a lease of `lease_ms`."""
        if self._heart is not None:
            self._heart.hurry(lease_ms)

    def entered(self, scope: Scope) -> None:
        """Look after a scope that was opened."""
        ledger = self.ledger
        with self._lock:
            if self._heart is None:
                self._heart = Heart(ledger)
            heart = self._heart
        heart.add(scope)

    def left(self, scope: Scope) -> None:
        """A scope was left. What it still owes is written in the background."""
        scope.closed()
        if self._heart is not None and scope.idle():
            self._heart.remove(scope)

    def close(self) -> None:
        """Let what was sent be written, for a bounded time, and end the threads. Twice is harmless."""
        with self._lock:
            heart, self._heart = self._heart, None
            made, self._made = self._made, None
        if heart is not None:
            heart.stop()
        if made is not None:
            made.close()


_RUNTIMES: weakref.WeakSet[Runtime] = weakref.WeakSet()
_default: Runtime | None = None
_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """Return the runtime of this process, made from the environment when first asked for.

    Raises:
        SettingsWrong: a setting is unknown or does not fit.
    """
    global _default
    if _default is None:
        from amends.producers.kafka_ledger import runtime_from_environment  # the Kafka client only where it is needed

        with _default_lock:
            if _default is None:
                made = runtime_from_environment()
                atexit.register(made.close)
                _default = made
    return _default


def set_default_runtime(runtime: Runtime | None) -> Runtime | None:
    """Make `runtime` the one that scopes take where none is given; return the one before. Closes neither."""
    global _default
    before, _default = _default, runtime
    return before


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for runtime in list(_RUNTIMES):
        runtime._begin_instance()


os.register_at_fork(after_in_child=_after_fork_in_child)
