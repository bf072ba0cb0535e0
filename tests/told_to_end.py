"""For programs of tests that are told to end while others still run that they started."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class _Told:
    """What became of a signal to end that came while nobody may be interrupted."""

    undisturbed: int = 0
    to_end: bool = False


_told = _Told()


@contextlib.contextmanager
def interrupted_when_told_to_end() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal to end, so that blocks take down what they started; the next signals
    do not disturb them at it. Of the main thread."""

    def interrupt(*_: object) -> None:
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        if _told.undisturbed:
            _told.to_end = True
        else:
            raise KeyboardInterrupt

    before = {ending: signal.signal(ending, interrupt) for ending in ENDINGS}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Have a program run for the length of a block; one that is left by an exception kills it."""
    process = None
    try:
        _told.undisturbed += 1  # an interrupt between fork and exec would leave one that nobody knows
        try:
            process = subprocess.Popen(list(command), env=dict(environment), text=True, **more)
        finally:
            _told.undisturbed -= 1
        if _told.to_end:
            _told.to_end = False
            raise KeyboardInterrupt
        yield process
    except BaseException:
        if process is not None:
            process.kill()
        raise
    finally:
        if process is not None:
            with process:  # waits for its end, and closes its pipes
                pass
