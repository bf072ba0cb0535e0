"""Options of librdkafka as what Faust's client connects with; what can't be said there is refused, without secrets."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import faust
import pytest
from faust.types.auth import AuthProtocol, SASLMechanism

from amends.kafka.settings import KafkaSettings
from amends.processors.faust_credentials import OptionRefusedError, credentials_of, refuse_unknown
from amends.processors.faust_oauth import ClientCredentials, NoTokenError, TokenProvider
from amends.processors.faust_options import app_options
from amends.processors.settings import ProcessorSettings

SECRET = "s3cret-word"


def test_without_options_it_is_in_the_clear() -> None:
    assert credentials_of({}) is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_name_and_a_password(mechanism: str, name: str) -> None:
    found = credentials_of(
        {"security.protocol": "SASL_PLAINTEXT", name: mechanism, "sasl.username": "amends", "sasl.password": SECRET}
    )
    assert isinstance(found, faust.SASLCredentials)
    assert (found.username, found.password, found.ssl_context) == ("amends", SECRET, None)
    assert (found.mechanism, found.protocol) == (SASLMechanism(mechanism), AuthProtocol.SASL_PLAINTEXT)
    assert SECRET not in repr(found)


def test_a_name_over_tls() -> None:
    found = credentials_of(
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": SECRET}
    )
    assert isinstance(found, faust.SASLCredentials)
    assert found.protocol is AuthProtocol.SASL_SSL
    assert found.ssl_context is not None
    assert found.ssl_context.check_hostname
    assert found.ssl_context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("options", "checks_name", "verifies"),
    [
        ({}, True, ssl.CERT_REQUIRED),
        ({"ssl.endpoint.identification.algorithm": "none"}, False, ssl.CERT_REQUIRED),
        ({"enable.ssl.certificate.verification": "false"}, False, ssl.CERT_NONE),
    ],
)
def test_tls_checks_what_the_options_say(options: dict[str, str], checks_name: bool, verifies: ssl.VerifyMode) -> None:
    found = credentials_of({"security.protocol": "SSL", **options})
    assert isinstance(found, faust.SSLCredentials)
    assert (found.context.check_hostname, found.context.verify_mode) == (checks_name, verifies)


def test_client_credentials_for_a_token() -> None:
    found = credentials_of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "amends",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
        }
    )
    assert isinstance(found, faust.OAuthCredentials)
    assert isinstance(found.oauth_cb, TokenProvider)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism GSSAPI"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism GSSAPI"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "AMENDS_KAFKA__SASL_USERNAME"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "method=oidc"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/ca.pem"}, "/no/such/ca.pem"),
        ({"security.protocol": "SSL", "ssl.key.location": "/a/key"}, "ssl.certificate.location"),
        ({"security.protocol": "SSL", "ssl.ca.pem": SECRET}, "given as PEM"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_what_to_change(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionRefusedError, match=words) as refused:
        credentials_of(options)
    assert SECRET not in str(refused.value)


def test_an_option_that_faust_has_nothing_for_is_refused_by_its_name() -> None:
    refuse_unknown({"client.id": "x", "security.protocol": "SSL"})
    with pytest.raises(OptionRefusedError, match=r"ssl\.keystore\.location") as refused:
        refuse_unknown({"ssl.keystore.location": "/a.p12", "ssl.keystore.password": SECRET})
    assert SECRET not in str(refused.value)


def test_the_settings_that_a_promise_rests_on_are_set() -> None:
    kafka = KafkaSettings(bootstrap_servers="one:9092, two:9093", options={"client.id": "mine"})
    found = app_options(kafka, ProcessorSettings(session_timeout_ms=9_000, instance_id="p-1"))
    app = faust.App("settings-of-a-test", **found)
    conf = app.conf
    assert [str(url) for url in conf.broker] == ["kafka://one:9092", "kafka://two:9093"]
    assert (conf.broker_session_timeout, conf.broker_heartbeat_interval) == (9.0, 3.0)
    assert (conf.consumer_group_instance_id, conf.broker_client_id) == ("p-1", "mine")
    assert (conf.table_standby_replicas, found["processing_guarantee"]) == (0, "at_least_once")
    assert (conf.topic_allow_declare, conf.topic_disable_leader, conf.stream_wait_empty) == (False, True, False)
    assert (conf.web_enabled, conf.web_bind, conf.web_tables_enabled) == (False, "127.0.0.1", False)
    assert (conf.producer_acks, conf.producer_threaded, conf.producer_max_request_size) == (-1, False, 1_048_588)
    assert conf.broker_max_poll_records == 500


# --- tokens -----------------------------------------------------------------------------------------------------------


class TokenServer:
    """A token endpoint; `asked` are the forms it was sent, with who sent them."""

    def __init__(self, answer: dict[str, Any], status: int = 200) -> None:
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"])).decode()
                who = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                outer.asked.append((who, parse_qs(content)))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[TokenServer]:
    server = TokenServer({"access_token": "t1", "expires_in": 3600})
    yield server
    server.close()


async def test_a_token_is_asked_for_once_in_its_life(endpoint: TokenServer) -> None:
    provider = TokenProvider(ClientCredentials(endpoint.url, "am:ends", SECRET, scope="kafka"))
    assert [await provider.token(), await provider.token()] == ["t1", "t1"]
    assert endpoint.asked == [(f"am%3Aends:{SECRET}", {"grant_type": ["client_credentials"], "scope": ["kafka"]})]


async def test_a_wrong_secret_is_said_so_and_not_shown() -> None:
    server = TokenServer({"error": "invalid_client"}, status=401)
    try:
        with pytest.raises(NoTokenError, match="401") as refused:
            await TokenProvider(ClientCredentials(server.url, "amends", SECRET)).token()
        assert SECRET not in str(refused.value)
    finally:
        await asyncio.to_thread(server.close)


async def test_an_endpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(NoTokenError, match=r"127\.0\.0\.1:1"):
        await TokenProvider(ClientCredentials("http://127.0.0.1:1/token", "amends", SECRET)).token()
