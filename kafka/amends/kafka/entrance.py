"""The first contact with the brokers: let in, nobody there, or turned away and why.

Every part comes in here once when it starts, so that a wrong certificate, password or protocol is an error within
seconds that names the setting, where the client alone would try again for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._metadata import TopicMetadata

from amends.kafka.errors import AccessRefused, ReadTimedOut
from amends.kafka.handles import AdminClient
from amends.kafka.looking import Door, look_at, token_endpoint_away
from amends.kafka.options import TOKEN_ENDPOINT, common_options, logger
from amends.kafka.secrets import is_secret
from amends.kafka.settings import KafkaSettings
from amends.kafka.turned_away import TURNED_AWAY

REQUEST_MS = 15_000
FIRST_LOOK_MS = 1_000
"""An answer that takes longer is waited for longer at the next try, twice as long each time."""
LOOK_AGAIN_S = 0.05
SERVERS_LOOKED_AT_MAX = 3


class Entrance:
    """An admin client that hears why brokers turn it away. One thread uses it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._heard = heard = _Heard()  # no way from the client back to us: it ends when we do
        options = common_options(settings)
        options["error_cb"] = heard.hear
        self.admin = AdminClient(options, logger=logger)

    def topics(self, deadline_ms: int = REQUEST_MS) -> dict[str, TopicMetadata]:
        """Return the topics there are, as far as this client may know of them.

        Raises:
            AccessRefused: a broker is there and does not let this client in with these settings.
            ReadTimedOut: no broker answers, or the endpoint of its tokens is away.
        """
        give_up_at = time.monotonic() + deadline_ms / 1000
        wait_s = FIRST_LOOK_MS / 1000
        while True:
            began_at = time.monotonic()
            try:
                topics = self.admin.list_topics(timeout=max(0.001, min(wait_s, give_up_at - began_at))).topics
            except KafkaException as error:
                cause: KafkaError = error.args[0]
            else:
                return {name: topic for name, topic in topics.items() if topic.error is None}
            self.admin.poll(0)
            without_token = why_no_token(self._settings, self._heard.words)
            if not without_token and (why := why_refused(self._settings, self._heard.words)):
                raise AccessRefused(why)
            if time.monotonic() >= give_up_at:
                raise ReadTimedOut(without_token or f"the broker doesn't answer: {cause.str()}")
            time.sleep(LOOK_AGAIN_S)
            wait_s = min(2 * wait_s, REQUEST_MS / 1000)


class _Heard:
    """What brokers said when they turned a client away."""

    words = ""

    def hear(self, error: KafkaError) -> None:
        if error.code() in TURNED_AWAY:
            self.words = error.str()


def require_entrance(settings: KafkaSettings, deadline_ms: int = REQUEST_MS) -> None:
    """Return if the brokers let a client with these settings in. Raises AccessRefused, ReadTimedOut; see `Entrance`."""
    Entrance(settings).topics(deadline_ms)


def require_entrance_once(settings: KafkaSettings, deadline_ms: int = REQUEST_MS) -> None:
    """As `require_entrance`, for who comes often: once they were let in, these settings are not tried again."""
    known = (settings.bootstrap_servers, tuple(sorted(settings.options.items())))
    if known not in _LET_IN:
        require_entrance(settings, deadline_ms)
        _LET_IN.add(known)


_LET_IN: set[tuple[str, tuple[tuple[str, str], ...]]] = set()


def setting_of(option: str) -> str:
    """Return the variable that sets an option of the client."""
    return f"AMENDS_KAFKA__{option.upper().replace('.', '_')}"


PROTOCOL = setting_of("security.protocol")
OWN_CERTIFICATE = f"{setting_of('ssl.certificate.location')} and {setting_of('ssl.key.location')}"


def why_refused(settings: KafkaSettings, heard: str) -> str:
    """Return why the brokers turn a client away and what to change, or nothing where that is not known.

    `heard`: what the client said of it.
    """
    why = ""
    for host, port in _servers(settings)[:SERVERS_LOOKED_AT_MAX]:
        door = look_at(host, port, settings.options)
        if why := _judged(door, settings.options):
            why = f"Kafka at {door.address} {why}"
            break
    if not why and heard:
        why = f"Kafka at {settings.bootstrap_servers} {_told(_plainly(heard, settings.options), settings.options)}"
    return why


def why_no_token(settings: KafkaSettings, heard: str) -> str:
    """Return why no token can be had now that may be had later, or nothing.

    `heard`: what the client said. Of an endpoint that is silent it says nothing for a long time.
    """
    url = settings.options.get(TOKEN_ENDPOINT)
    if not url or _mechanism(settings.options) != "OAUTHBEARER" or (heard and not _is_of_token(heard)):
        return ""
    why = token_endpoint_away(url)
    if not why:
        return ""
    return (
        f"there is no token for Kafka, as {urlsplit(url).hostname} ({setting_of(TOKEN_ENDPOINT)}) can't give one: {why}"
    )


def _mechanism(options: Mapping[str, str]) -> str:
    return (options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "").upper()


def _is_of_token(heard: str) -> bool:
    return "token" in heard.lower()


def _judged(door: Door, options: Mapping[str, str]) -> str:
    """Return what is wrong between a door and the options, or nothing."""
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    mechanism = _mechanism(options) or "GSSAPI"
    with_tls, with_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    sasl = "SASL_" if door.mechanisms or (with_sasl and door.mechanisms is None) else ""
    if door.speaks_tls and not with_tls:
        return f"speaks TLS, and {PROTOCOL} is {protocol}: set it to {sasl}SSL"
    if door.speaks_tls is False and with_tls:
        plain = "SASL_PLAINTEXT" if sasl else "PLAINTEXT"
        return f"does not speak TLS, and {PROTOCOL} is {protocol}: set it to {plain}, or name the port that does"
    if with_tls and door.distrust:
        return _distrusted(door.distrust)
    if with_tls and door.turned_away:
        return f"refuses this client's certificate ({door.turned_away}): see to {OWN_CERTIFICATE}"
    if door.mechanisms and not with_sasl:
        offered = ", ".join(door.mechanisms)
        return f"asks who comes (SASL {offered}), and {PROTOCOL} is {protocol}: set it to {'SASL_' + _wire(protocol)}"
    if door.mechanisms == () and with_sasl:
        return f"has no SASL, and {PROTOCOL} is {protocol}: set it to {_wire(protocol)}, or name the port that has"
    if door.mechanisms and with_sasl and mechanism not in door.mechanisms:
        offered = ", ".join(door.mechanisms)
        return f"does not offer {mechanism}: set {setting_of('sasl.mechanism')} to one of {offered}"
    return ""


def _wire(protocol: str) -> str:
    return "SSL" if protocol.endswith("SSL") else "PLAINTEXT"


def _distrusted(why: str) -> str:
    words = f"shows a certificate that is not to be believed: {why}. "
    if "expired" in why or "not yet valid" in why:
        return words + "The broker needs a new one (or this machine's clock is wrong)"
    if "mismatch" in why.lower() or "doesn't match" in why:
        return words + "Name the broker as its certificate does: AMENDS_KAFKA__BOOTSTRAP_SERVERS"
    return words + f"Name the authority that signed it: {setting_of('ssl.ca.location')}"


def _told(heard: str, options: Mapping[str, str]) -> str:
    """Return what the client heard, and the settings that it is about."""
    mechanism = _mechanism(options)
    if mechanism == "OAUTHBEARER" and _is_of_token(heard):
        names = ("client.id", "client.secret", "token.endpoint.url")
        settings = ", ".join(setting_of(f"sasl.oauthbearer.{name}") for name in names)
        return f"was not asked, for there is no token: {heard}. See to {settings}"
    if mechanism == "OAUTHBEARER":
        return f"refuses the token: {heard}. See to {setting_of('sasl.oauthbearer.scope')}, or the broker's audience"
    if mechanism:
        return f"refuses the credentials: {heard}. See to {setting_of('sasl.username')}, {setting_of('sasl.password')}"
    return f"turns this client away: {heard}. See to {PROTOCOL}, {setting_of('ssl.ca.location')}"


def _servers(settings: KafkaSettings) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if host and port.isdigit():
            found.append((host.strip("[]"), int(port)))
    return found


_NOISE = re.compile(r"^\w+://\S+: | \(after [^)]*\)")


def _plainly(heard: str, options: Mapping[str, str]) -> str:
    """Return the client's words without its own noise, and without a secret that a broker or endpoint sent back."""
    words = _NOISE.sub("", heard).strip()
    for name, value in options.items():
        if is_secret(name) and value:
            words = words.replace(value, "********")
    return words
