"""The schedule of faults, and the proxy that carries out those of the network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tests.chaos.proxy import Link, Mode, network
from tests.chaos.schedule import Kind, schedule

from amends.local.children import free_port

TIMEOUT_S = 10.0
A_MOMENT_S = 0.3


def test_a_seed_is_a_schedule() -> None:
    assert schedule(7, 300) == schedule(7, 300)
    assert schedule(7, 300) != schedule(8, 300)


def test_ten_minutes_meet_every_kind_of_fault() -> None:
    assert {fault.kind for fault in schedule(1, 600)} == set(Kind)


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(65_536):
                        connection.sendall(data)
                except OSError:
                    return

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(TIMEOUT_S)


@pytest.fixture
def link(echo_port: int) -> Iterator[Link]:
    with network() as loop:
        made = Link("a link", free_port(), echo_port, loop)
        yield made
        made.close()


def call(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=TIMEOUT_S)


def answered(connection: socket.socket, text: bytes = b"hello") -> bool:
    connection.sendall(text)
    found = b""
    while len(found) < len(text):
        data = connection.recv(65_536)
        if not data:
            return False
        found += data
    return found == text


def test_a_link_passes_on_what_it_gets_in_both_directions(link: Link) -> None:
    with call(link) as connection:
        assert answered(connection, b"x" * 30_000)


def test_a_stalled_connection_delivers_late_and_loses_nothing(link: Link) -> None:
    with call(link) as connection:
        assert answered(connection)
        link.treat_all(Mode.STALLED)
        connection.settimeout(A_MOMENT_S)
        with pytest.raises(TimeoutError):
            answered(connection, b"late")
        link.treat_all(Mode.OPEN)
        connection.settimeout(TIMEOUT_S)
        assert connection.recv(100) == b"late"


def test_a_refusing_link_resets_what_is_open_and_nobody_listens_until_it_opens_again(link: Link) -> None:
    with call(link) as connection:
        assert answered(connection)
        link.treat_all(Mode.REFUSED)
        assert not _served(connection)
    with pytest.raises(ConnectionRefusedError):
        call(link)
    link.treat_all(Mode.OPEN)
    with call(link) as connection:
        assert answered(connection)


def test_only_those_who_are_isolated_are_cut_off(link: Link) -> None:
    with call(link) as isolated, call(link) as other:
        assert answered(isolated)
        assert answered(other)
        port = isolated.getsockname()[1]
        link.isolate(lambda: {port}, Mode.REFUSED)
        assert not _served(isolated)
        assert answered(other)


def _served(connection: socket.socket) -> bool:
    try:
        return answered(connection)
    except OSError:
        return False
