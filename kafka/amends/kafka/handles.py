"""The client library's handles, safe after a fork. Every handle of ours is made here, and nowhere else.

Ending a handle waits for its threads, and none of them comes along into a forked child: there the wait has no end. And
it is not ours to say when a child ends one: its garbage collector may, long after, in the middle of anything, for a
handle that the parent had already done with. So what lives at a fork is kept alive in the child for good.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import confluent_kafka
import confluent_kafka.admin


class Producer(confluent_kafka.Producer):
    """See the module."""

    def __init__(self, options: dict[str, Any], **more: Any) -> None:
        super().__init__(options, **more)
        _HANDLES.add(self)


class Consumer(confluent_kafka.Consumer):
    """See the module."""

    def __init__(self, options: dict[str, Any], **more: Any) -> None:
        super().__init__(options, **more)
        _HANDLES.add(self)


class AdminClient(confluent_kafka.admin.AdminClient):
    """See the module."""

    def __init__(self, options: dict[str, Any], **more: Any) -> None:
        super().__init__(options, **more)
        _HANDLES.add(self)


def keep_for_good(thing: object) -> None:
    """Never end this object, whoever lets go of it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_HANDLES: weakref.WeakSet[Producer | Consumer | AdminClient] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for handle in list(_HANDLES):
        keep_for_good(handle)
    _HANDLES.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
