"""A schema registry behind TLS: whom we trust, who we are, and what is said where one of them is wrong."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.schema_registry_server import OurRegistry
from tests.security.certificates import Authority, Identity

from amends.kafka.errors import SettingsWrong
from amends.kafka.loading import load_settings
from amends.kafka.schema_registry import SchemaRegistry
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SECTION, SchemaRegistrySettings

KEY_PASSWORD = "k3y-password"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("trusted"), "trusted")


@pytest.fixture(scope="module")
def us(authority: Authority) -> Identity:
    return authority.sign("agent", password=KEY_PASSWORD)


def context(identity: Identity, trusts: Authority | None = None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(identity.certificate, identity.key)
    if trusts is not None:
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(trusts.file)
    return made


@pytest.fixture
def asked_who(authority: Authority) -> Iterator[OurRegistry]:
    """A registry that lets in who has a certificate of the authority."""
    with OurRegistry(tls=context(authority.sign("registry"), trusts=authority)) as server:
        yield server


def start(server: OurRegistry, **more: Any) -> None:
    SchemaRegistry(SchemaRegistrySettings(url=(server.url,), auto_register=True, **more)).start().stop()


def test_a_registry_of_a_trusted_authority_is_spoken_to(authority: Authority) -> None:
    with OurRegistry(tls=context(authority.sign("registry"))) as server:
        start(server, ssl_ca_location=str(authority.file))
        assert server.asked


def test_one_that_nobody_trusts_is_refused_and_the_setting_named(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    with OurRegistry(tls=context(authority.sign("registry"))) as server:
        for more in ({}, {"ssl_ca_location": str(stranger.file)}):
            with pytest.raises(SettingsWrong, match=r"certificate is not accepted.*SSL_CA_LOCATION"):
                start(server, **more)
        assert server.asked == []


def test_a_certificate_that_expired_or_is_of_another_host_is_refused_with_the_reason(authority: Authority) -> None:
    for identity, words in (
        (authority.sign("registry", expired=True), "certificate has expired"),
        (authority.sign("registry", host="10.9.8.7"), "mismatch"),
    ):
        with (
            OurRegistry(tls=context(identity)) as server,
            pytest.raises(SettingsWrong, match=words),
        ):
            start(server, ssl_ca_location=str(authority.file))


def test_we_say_who_we_are_where_it_asks(authority: Authority, us: Identity, asked_who: OurRegistry) -> None:
    start(
        asked_who,
        ssl_ca_location=str(authority.file),
        ssl_certificate_location=str(us.certificate),
        ssl_key_location=str(us.key),
        ssl_key_password=KEY_PASSWORD,
    )
    assert asked_who.asked


def test_where_it_asks_and_we_have_nothing_to_show_the_settings_are_named(
    authority: Authority, asked_who: OurRegistry
) -> None:
    registry = SchemaRegistry(SchemaRegistrySettings(url=(asked_who.url,), ssl_ca_location=str(authority.file)))
    said = ""
    try:
        said = registry.start().state.words  # it may close the connection before it says why
    except SettingsWrong as refused:
        said = str(refused)
    registry.stop()
    assert "SSL_CERTIFICATE_LOCATION" in said
    assert asked_who.asked == []


def test_a_port_without_tls_is_told(authority: Authority) -> None:
    with OurRegistry() as server:
        url = server.url.replace("http:", "https:")
        registry = SchemaRegistry(SchemaRegistrySettings(url=(url,), ssl_ca_location=str(authority.file)))
        with pytest.raises(SettingsWrong, match="does not speak TLS"):
            registry.start()


def test_files_that_do_not_fit_are_named_and_the_keys_password_is_not(us: Identity, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"ssl_ca_location": str(tmp_path / "none")},
        {"ssl_certificate_location": str(us.certificate), "ssl_key_location": str(us.key)},
        {
            "ssl_certificate_location": str(us.certificate),
            "ssl_key_location": str(us.key),
            "ssl_key_password": f"{KEY_PASSWORD}-not",
        },
    ]
    for given in wrong:
        with pytest.raises(SettingsWrong, match=r"AMENDS_SCHEMA_REGISTRY__SSL_") as refused:
            SchemaRegistryClient(SchemaRegistrySettings(url=("https://127.0.0.1:1",), **given))
        assert KEY_PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"URL": "registry:8081"}, "is no address"),
        ({"URL": "http://"}, "is no address"),
        ({"URL": "http://h:port"}, "is no address"),
        ({"URL": "http://me:s3cret@h"}, "AMENDS_SCHEMA_REGISTRY__PASSWORD"),
        ({"URL": "http://h?x=1"}, "query"),
        ({"URL": "http://h", "USER": "me"}, "USER without a password"),
        ({"URL": "http://h", "PASSWORD": "s3cret"}, "PASSWORD without a user"),
        ({"URL": "https://h", "SSL_KEY_LOCATION": "k"}, "a key needs its certificate"),
        ({"URL": "http://h", "SSL_CA_LOCATION": "ca"}, "set https://"),
        ({"URI": "http://h"}, "did you mean url"),
        ({"URL": "http://h", "UNKNOWN_WITHIN_MS": "60000"}, "AMENDS_SCHEMA_REGISTRY__UNKNOWN_WITHIN_MS"),
    ],
)
def test_settings_that_can_t_be_meant_are_refused_without_their_secrets(given: dict[str, str], words: str) -> None:
    env = {f"AMENDS_SCHEMA_REGISTRY__{name}": value for name, value in given.items()}
    with pytest.raises(SettingsWrong, match=words) as refused:
        load_settings(SchemaRegistrySettings, SECTION, env)
    assert "s3cret" not in str(refused.value)


def test_several_addresses_and_secrets_in_files_are_understood(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    env = {
        "AMENDS_SCHEMA_REGISTRY__URL": "http://a:8081/, https://b/apis/ccompat/v7",
        "AMENDS_SCHEMA_REGISTRY__USER": "me",
        "AMENDS_SCHEMA_REGISTRY__PASSWORD_FILE": str(tmp_path / "password"),
    }
    settings = load_settings(SchemaRegistrySettings, SECTION, env)
    assert settings.url == ("http://a:8081", "https://b/apis/ccompat/v7")
    assert settings.password is not None
    assert settings.password.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings)
