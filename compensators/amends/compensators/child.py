"""A process of the pool: `python -m amends.compensators.child SOCKET LEASH MODULE…`. It runs one handler at a time.

It first says which handlers it found, or why it can't load the modules. The socket carries frames (four bytes of
length, then a pickle) between two processes of one user that are one program; nothing from outside comes over it. The
leash is a pipe that ends when the worker does, however it ends: then the child and whatever it started end too, for
nobody is left to record what they do.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import sys
import threading

from amends.compensators.inventory import plain_handlers
from amends.compensators.invocation import Invocation, invoke
from amends.compensators.verdicts import failure_of
from amends.tools.registry import HandlerRegistry

LENGTH = struct.Struct("!I")


def main(arguments: list[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    # A Ctrl-C is for the worker, which drains; what a handler leaves running must not outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_hold, args=(int(arguments[1]),), daemon=True).start()
    tools = HandlerRegistry()
    try:
        tools.load(arguments[2:])
    except BaseException as error:
        failure = failure_of(error)
        _send(channel, f"{failure.type}: {failure.message}")
        return
    _send(channel, frozenset(plain_handlers(tools)))
    own = os.getpid()
    while (frame := _receive(channel)) is not None:
        asked: Invocation = pickle.loads(frame)  # noqa: S301 - from the worker, over a socket of its own
        answer = invoke(tools, asked)
        if os.getpid() != own:
            os._exit(0)  # a fork that the handler left behind: its answer would be taken for that of the next question
        _send(channel, answer)


def _hold(leash: int) -> None:
    os.read(leash, 1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _send(channel: socket.socket, message: object) -> None:
    frame = pickle.dumps(message)
    channel.sendall(LENGTH.pack(len(frame)) + frame)


def _receive(channel: socket.socket) -> bytes | None:
    head = _exactly(channel, LENGTH.size)
    return None if head is None else _exactly(channel, LENGTH.unpack(head)[0])


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main(sys.argv[1:])
