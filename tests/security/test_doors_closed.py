"""A door that stays closed is an error within seconds, in words that name the setting, and no secret."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.security.certificates import Authority, Identity
from tests.security.parts import compensator, processor, variables_of
from tests.security.secured import PASSWORD, Secured, secret_of
from tests.security.token_endpoint import AWAY

from amends.console.application import run
from amends.kafka.entrance import require_entrance, why_refused
from amends.kafka.errors import AccessRefused, ReadTimedOut
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.children import free_port
from amends.processors.engine import RightMissingError
from amends.producers import workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.tools.errors import LedgerUnavailable

pytestmark = [pytest.mark.kafka]

WITHIN_S = 9.0
"""On a machine that does much else; it takes one to two."""
WRONG = "not the password"


def at(secured: Secured, door: str, options: dict[str, str], prefix: str = "closed") -> KafkaSettings:
    port = secured.ports.get(door)
    server = f"127.0.0.1:{port}" if port else secured.server.bootstrap_servers
    return KafkaSettings(
        bootstrap_servers=server, topic_prefix=prefix, partitions=2, replication_factor=1, lanes=("doors",),
        options=options,
    )  # fmt: skip


def with_certificate(secured: Secured, own: Identity) -> dict[str, str]:
    files = {"ssl.certificate.location": str(own.certificate), "ssl.key.location": str(own.key)}
    return {**secured.options("mtls", "processor"), **files}


CASES: dict[str, tuple[str, Callable[[Secured, Authority], dict[str, str]], tuple[str, ...]]] = {
    "the certificate expired": (
        "expired", lambda s, _: s.options("tls", ""), ("expired", "The broker needs a new one"),
    ),
    "the certificate is of another host": (
        "misnamed", lambda s, _: s.options("tls", ""), ("mismatch", "AMENDS_KAFKA__BOOTSTRAP_SERVERS"),
    ),
    "the authority is unknown": (
        "tls", lambda _, other: {"security.protocol": "SSL", "ssl.ca.location": str(other.file)},
        ("issuer", "AMENDS_KAFKA__SSL_CA_LOCATION"),
    ),
    "no authority is named": (
        "tls", lambda _, __: {"security.protocol": "SSL"}, ("AMENDS_KAFKA__SSL_CA_LOCATION",),
    ),
    "a plain client at a TLS port": (
        "tls", lambda _, __: {}, ("speaks TLS", "AMENDS_KAFKA__SECURITY_PROTOCOL is PLAINTEXT: set it to SSL"),
    ),
    "a plain client at a port with TLS and SASL": ("sasl", lambda _, __: {}, ("set it to SASL_SSL",)),
    "a plain client at a port with SASL": (
        "clear", lambda _, __: {}, ("SCRAM-SHA-512", "set it to SASL_PLAINTEXT"),
    ),
    "a TLS client at a plain port": (
        "plain", lambda s, _: s.options("tls", ""), ("does not speak TLS", "AMENDS_KAFKA__SECURITY_PROTOCOL"),
    ),
    "a client without SASL at a port with TLS and SASL": (
        "sasl", lambda s, _: s.options("tls", ""), ("SCRAM-SHA-256", "set it to SASL_SSL"),
    ),
    "a client with SASL at a port with TLS alone": (
        "tls", lambda s, _: s.options("PLAIN", "processor"), ("has no SASL", "set it to SSL"),
    ),
    "no certificate where one is asked for": (
        "mtls", lambda s, _: s.options("tls", ""), ("AMENDS_KAFKA__SSL_CERTIFICATE_LOCATION",),
    ),
    "a stranger's certificate": (
        "mtls", lambda s, other: with_certificate(s, other.sign("processor", password=PASSWORD)),
        ("refuses this client's certificate", "AMENDS_KAFKA__SSL_KEY_LOCATION"),
    ),
    "our certificate expired": (
        "mtls", lambda s, _: with_certificate(s, s.authority.sign("processor", password=PASSWORD, expired=True)),
        ("refuses this client's certificate",),
    ),
    "a wrong password, PLAIN": (
        "sasl", lambda s, _: s.options("PLAIN", "processor") | {"sasl.password": WRONG},
        ("refuses the credentials", "AMENDS_KAFKA__SASL_PASSWORD"),
    ),
    "a wrong password, SCRAM": (
        "sasl", lambda s, _: s.options("SCRAM-SHA-512", "processor") | {"sasl.password": WRONG},
        ("refuses the credentials", "AMENDS_KAFKA__SASL_USERNAME"),
    ),
    "a mechanism that is not offered": (
        "clear", lambda s, _: {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "processor", "sasl.password": WRONG,
        },
        ("does not offer PLAIN", "AMENDS_KAFKA__SASL_MECHANISM to one of SCRAM-SHA-512"),
    ),
    "a wrong client secret": (
        "sasl", lambda s, _: s.options("OAUTHBEARER", "processor") | {"sasl.oauthbearer.client.secret": WRONG},
        ("no token", "invalid_client", "AMENDS_KAFKA__SASL_OAUTHBEARER_CLIENT_SECRET"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_door_that_stays_closed_is_an_error_that_names_the_setting(
    secured: Secured, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door, options_of, words = CASES[case]
    kafka = at(secured, door, options_of(secured, Authority(tmp_path, "another")))
    began_at = time.monotonic()
    with pytest.raises(AccessRefused) as raised:
        require_entrance(kafka)
    assert time.monotonic() - began_at < WITHIN_S
    said = str(raised.value) + caplog.text
    for word in words:
        assert word in str(raised.value)
    for secret in (WRONG, PASSWORD, *map(secret_of, ("processor",))):
        assert secret not in said


def test_nobody_there_is_no_refusal() -> None:
    nobody = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(ReadTimedOut):
        require_entrance(nobody, 1_500)


def test_a_token_endpoint_that_is_away_is_to_be_tried_again_and_named(secured: Secured) -> None:
    options = secured.options("OAUTHBEARER", "processor")
    url = "sasl.oauthbearer.token.endpoint.url"
    with pytest.raises(ReadTimedOut, match=r"no token .*SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL.*refused") as told:
        require_entrance(at(secured, "sasl", options | {url: f"http://127.0.0.1:{free_port()}/token"}), 1_500)
    assert secret_of("processor") not in str(told.value)
    with pytest.raises(ReadTimedOut, match=r"no token .*HTTP 503"):
        require_entrance(at(secured, "sasl", options | {url: secured.endpoint.url + AWAY}), 1_500)


def test_every_part_says_so_when_it_starts(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = at(secured, "sasl", secured.options("SCRAM-SHA-256", "processor") | {"sasl.password": WRONG})
    named = "AMENDS_KAFKA__SASL_PASSWORD"
    began_at = time.monotonic()
    with pytest.raises(RightMissingError, match=named), processor(kafka):
        pytest.fail("it started")
    with pytest.raises(AccessRefused, match=named), compensator(kafka):
        pytest.fail("it started")
    with pytest.raises(AccessRefused, match=named):
        create_topics(kafka)
    runtime = kafka_runtime(kafka)
    with pytest.raises(LedgerUnavailable, match=named), workflow("w", runtime=runtime):
        pytest.fail("the block ran")
    runtime.close()
    for name, value in variables_of(kafka).items():
        monkeypatch.setenv(name, value)
    assert run(["workflows", "list"]) != 0
    said = capsys.readouterr().err
    assert named in said
    assert WRONG not in said
    assert time.monotonic() - began_at < 5 * WITHIN_S


def test_a_secret_that_an_endpoint_sends_back_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": WRONG,
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1/token",
    }  # fmt: skip
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}", options=options)
    with caplog.at_level(logging.DEBUG):
        told = why_refused(kafka, f"Failed to acquire SASL OAUTHBEARER token: bad secret '{WRONG}'")
    assert "********" in told
    assert WRONG not in told + caplog.text
