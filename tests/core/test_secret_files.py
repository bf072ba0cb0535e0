"""Secrets in files of their own, as containers are given theirs; and options that would protect nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from amends.compensators.settings import CompensatorSettings
from amends.console.configuration import HIDDEN, in_force
from amends.kafka.errors import SettingsWrong
from amends.kafka.secrets import is_secret
from amends.kafka.settings import KafkaSettings, load_settings
from amends.producers.callback_settings import CallbackSettings

SECRET = "correct horse"
SASL = {
    "AMENDS_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
    "AMENDS_KAFKA__SASL_MECHANISM": "PLAIN",
    "AMENDS_KAFKA__SASL_USERNAME": "me",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    return path


def test_a_secret_is_read_from_the_file_that_a_variable_names_without_its_last_line_end(file: Path) -> None:
    env = {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file)}
    assert load_settings(KafkaSettings, "kafka", env).options["sasl.password"] == SECRET


def test_a_settings_file_may_name_it_too(file: Path, tmp_path: Path) -> None:
    settings = tmp_path / "amends.toml"
    settings.write_text(f'[kafka]\nsasl_password_file = "{file}"\n')
    assert load_settings(KafkaSettings, "kafka", SASL, settings).options["sasl.password"] == SECRET


def test_fields_that_are_secrets_can_be_given_so(file: Path) -> None:
    file.write_text("redis://:word@127.0.0.1:6379/0")
    found = load_settings(CompensatorSettings, "compensator", {"AMENDS_COMPENSATOR__REDIS_URL_FILE": str(file)})
    assert found.redis_url is not None
    assert found.redis_url.get_secret_value() == file.read_text()


def test_several_secrets_may_stand_in_one_file(file: Path) -> None:
    file.write_text(f"{'a' * 40},{'b' * 40}\n")
    found = load_settings(CallbackSettings, "callbacks", {"AMENDS_CALLBACKS__TOKEN_SECRETS_FILE": str(file)})
    assert [secret.get_secret_value()[0] for secret in found.token_secrets] == ["a", "b"]


def test_where_a_secret_came_from_is_shown_and_the_secret_is_not(file: Path) -> None:
    env = {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file)}
    (shown,) = [setting for setting in in_force(KafkaSettings, "kafka", env) if "password" in setting.name]
    assert (shown.value, shown.origin) == (HIDDEN, "AMENDS_KAFKA__SASL_PASSWORD_FILE")


@pytest.mark.parametrize("content", ["", "\n", "x" * 70_000], ids=["empty", "a line's end", "too large"])
def test_a_file_that_holds_no_secret_is_refused_by_name(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(SettingsWrong, match=r"AMENDS_KAFKA__SASL_PASSWORD_FILE.*(is empty|is larger)") as raised:
        load_settings(KafkaSettings, "kafka", {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file)})
    assert content[:10].strip() == "" or content[:10] not in str(raised.value)


def test_a_file_that_is_not_there_or_no_text_is_refused_by_name(file: Path) -> None:
    env = {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file.with_name("none"))}
    with pytest.raises(SettingsWrong, match=r"AMENDS_KAFKA__SASL_PASSWORD_FILE.*No such file"):
        load_settings(KafkaSettings, "kafka", env)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsWrong, match="no text"):
        load_settings(KafkaSettings, "kafka", {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file)})


def test_a_secret_that_is_given_twice_is_refused(file: Path) -> None:
    env = {**SASL, "AMENDS_KAFKA__SASL_PASSWORD_FILE": str(file), "AMENDS_KAFKA__SASL_PASSWORD": SECRET}
    with pytest.raises(SettingsWrong, match="given twice") as raised:
        load_settings(KafkaSettings, "kafka", env)
    assert SECRET not in str(raised.value)


def test_only_secrets_are_read_from_files(file: Path) -> None:
    with pytest.raises(SettingsWrong, match="partitions"):
        load_settings(KafkaSettings, "kafka", {"AMENDS_KAFKA__PARTITIONS_FILE": str(file)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl.password": SECRET}, r"sasl\.password would have no effect.*SASL"),
        ({"security.protocol": "SSL", "sasl.username": "me"}, r"sasl\.username would have no effect"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is missing.*AMENDS_KAFKA__SASL_MECHANISM"),
        ({"ssl.ca.location": "/ca"}, r"ssl\.ca\.location would have no effect.*SSL"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca"}, r"ssl\.ca\.location would have no effect"),
    ],
)
def test_security_that_the_client_would_leave_aside_without_a_word_is_refused(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        KafkaSettings(options=options)
    assert SECRET not in str(raised.value)


OIDC = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": SECRET,
}  # fmt: skip


def test_settings_that_are_looked_at_ask_no_token_endpoint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(0.3)
        url = f"http://127.0.0.1:{endpoint.getsockname()[1]}/token"
        KafkaSettings(options={**OIDC, "sasl.oauthbearer.token.endpoint.url": url})
        with pytest.raises(TimeoutError):
            endpoint.accept()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, r"sasl\.oauthbearer\.token\.endpoint\.url.*mandatory"),
        ({"sasl.oauthbearer.token.endpoint.url": "login.example.com"}, "must begin with https"),
        ({"sasl.oauthbearer.method": "telepathy"}, "sasl.oauthbearer.method"),
    ],
)
def test_tokens_that_could_not_be_had_are_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        KafkaSettings(options={**OIDC, **more})
    assert SECRET not in str(raised.value)


def test_a_model_that_refuses_a_secret_does_not_show_it() -> None:
    for model, given in (
        (KafkaSettings, {"partitions": 0, "options": {"ssl.key.password": SECRET, "security.protocol": "SSL"}}),
        (CompensatorSettings, {"processes": -1, "redis_url": SECRET}),
    ):
        with pytest.raises(ValueError, match="greater than") as raised:
            model.model_validate(given)
        assert SECRET not in str(raised.value)


def test_names_of_secrets_are_known() -> None:
    secrets = (
        "sasl.password", "ssl_key_password", "ssl.key.pem", "ssl_key_pem", "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config", "token_secrets", "sasl.oauthbearer.assertion.private.key.passphrase",
    )  # fmt: skip
    assert all(map(is_secret, secrets))
    shown = ("sasl.username", "ssl.ca.location", "sasl.oauthbearer.token.endpoint.url", "sasl.mechanism")
    assert not any(map(is_secret, shown))
