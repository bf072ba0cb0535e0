"""A look at a broker's door when the client does not get through: what it speaks, whom it lets in.

The client (librdkafka) tries a door that is closed to it again and again, and often can't tell why: a certificate that
expired, one of another host and one of an unknown authority are one error to it, and of a plain client at a TLS port it
only says that brokers are down. So, once nothing else helped, two connections are made here: one to see the certificate
with a verifying eye, one to ask what SASL there is (a SaslHandshake request for a mechanism that nobody has; brokers
answer it with those they have). Nothing secret is sent.

Where the client has no token, its endpoint is looked at likewise: asked for one by nobody, which it refuses if it is
there.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException

LOOK_S = 3.0
SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION = 17, 1
ANSWER_BYTES_MAX = 65_536
LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
"""Answers that another try may change, as every 5xx."""


@dataclass(frozen=True, slots=True)
class Door:
    """What was seen of a broker's listener."""

    address: str
    is_there: bool = False
    """Something takes connections."""
    speaks_tls: bool | None = None
    """None: it spoke neither TLS nor Kafka."""
    distrust: str = ""
    """Why its certificate is not believed."""
    turned_away: str = ""
    """What it said to the certificate that we showed, or did not show."""
    mechanisms: tuple[str, ...] | None = None
    """The SASL mechanisms it has, none where it asks for no SASL; None: it did not say."""


def look_at(host: str, port: int, options: Mapping[str, str]) -> Door:
    """Look at one listener, with the certificates that the options of the client name. Raises nothing."""
    address = f"{host}:{port}"
    speaks_tls, turned_away, mechanisms = _asked_in_tls(host, port, options)
    if speaks_tls:
        return Door(address, True, True, _distrust(host, port, options), turned_away, mechanisms)
    with contextlib.suppress(OSError), _connected(host, port) as plain:
        try:
            mechanisms = _mechanisms(plain)
        except (OSError, struct.error):
            return Door(address, True)
        return Door(address, True, False, mechanisms=mechanisms)
    return Door(address)


def _asked_in_tls(host: str, port: int, options: Mapping[str, str]) -> tuple[bool, str, tuple[str, ...] | None]:
    """Return whether it speaks TLS, what it said to our certificate, and its mechanisms."""
    context = _context(options, verifying=False)
    greeted = False
    try:
        with _connected(host, port) as plain, context.wrap_socket(plain, server_hostname=host) as connection:
            greeted = True
            return True, "", _mechanisms(connection)
    except ssl.SSLError as error:
        alert = "ALERT" in (error.reason or "")
        return greeted or alert, (error.reason or "").lower().replace("_", " ") if alert else "", None
    except (OSError, struct.error):
        return greeted, "", None


def _distrust(host: str, port: int, options: Mapping[str, str]) -> str:
    try:
        context = _context(options, verifying=True)
        with _connected(host, port) as plain, context.wrap_socket(plain, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message or str(error)
    except (
        OSError,
        ValueError,
    ):  # seen by the other look already, or an authority that Python can't read
        return ""


def _context(options: Mapping[str, str], *, verifying: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = verifying and options.get("ssl.endpoint.identification.algorithm", "https") != "none"
    verifying = verifying and options.get("enable.ssl.certificate.verification", "true") != "false"
    context.verify_mode = ssl.CERT_REQUIRED if verifying else ssl.CERT_NONE
    if verifying:
        _trust(context, options)
    with contextlib.suppress(OSError):  # its files were read by the client before; other forms are not looked at
        if certificate := options.get("ssl.certificate.location"):
            password = options.get("ssl.key.password", "")
            context.load_cert_chain(certificate, options.get("ssl.key.location"), password=password)
    return context


def _trust(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    location, pem = options.get("ssl.ca.location"), options.get("ssl.ca.pem")
    if pem:
        context.load_verify_locations(cadata=pem)
    elif location and location != "probe":
        try:
            context.load_verify_locations(cafile=location)
        except IsADirectoryError:
            context.load_verify_locations(capath=location)
    else:
        context.load_default_certs()


@contextlib.contextmanager
def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=LOOK_S) as connection:
        yield connection


def _mechanisms(connection: socket.socket) -> tuple[str, ...]:
    client, mechanism = b"amends", b"-"
    body = struct.pack(">hhih", SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, 1, len(client)) + client
    body += struct.pack(">h", len(mechanism)) + mechanism
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 10 <= size <= ANSWER_BYTES_MAX:
        raise ConnectionError("no answer of a Kafka broker")
    answer = _exactly(connection, size)
    _correlation, _error, count = struct.unpack_from(">ihi", answer)
    found, at = [], 10
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, at)
        found.append(answer[at + 2 : at + 2 + length].decode("ascii", errors="replace"))
        at += 2 + length
    return tuple(sorted(found))


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the broker closed the connection")
        received += part
    return received


def token_endpoint_away(url: str) -> str:
    """Return why no token can be had at `url` now, whoever asks; nothing if it answers, or won't be trusted (TLS)."""
    # Here, for agents never come this far; urllib takes the same proxies as the client does.
    from urllib import error, request

    context = _context({}, verifying=False)
    try:
        asked = request.Request(url, data=b"grant_type=client_credentials")  # noqa: S310 - where the client asks, too
        with request.urlopen(asked, timeout=LOOK_S, context=context):  # noqa: S310
            return ""
    except error.HTTPError as answer:
        with answer:
            is_later = answer.code >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.code in LATER
            return f"HTTP {answer.code}" if is_later else ""
    except error.URLError as fault:
        return "" if isinstance(fault.reason, ssl.SSLError) else str(fault.reason)
    except ssl.SSLError:
        return ""
    except (OSError, HTTPException) as fault:
        return str(fault) or type(fault).__name__
    except ValueError:  # no address at all, which the client says in its own words
        return ""
