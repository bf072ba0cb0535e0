"""Settings: where each comes from, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from amends.kafka import KafkaSettings, SettingsWrong, load_settings
from amends.kafka.options import REFUSED
from amends.processors.settings import ProcessorSettings


class Limits(BaseModel):
    attempts_max: int = 3


class Some(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mode: str = "enforce"
    port: int = 8000
    engine: str = "transactions"
    modules: tuple[str, ...] = ()
    limits: Limits = Limits()


def test_a_variable_beats_the_file_and_an_argument_beats_both(tmp_path: Path) -> None:
    file = tmp_path / "amends.toml"
    file.write_text('[kafka]\npartitions = 4\ntopic_prefix = "filed"\nlanes = ["a", "b"]\n')
    env = {"AMENDS_KAFKA__PARTITIONS": "6", "AMENDS_CONFIG_FILE": str(file)}
    settings = load_settings(KafkaSettings, "kafka", env, bootstrap_servers="here:1")
    assert (settings.partitions, settings.topic_prefix, settings.lanes) == (6, "filed", ("a", "b"))
    assert settings.bootstrap_servers == "here:1"
    assert load_settings(KafkaSettings, "kafka", env, partitions=2).partitions == 2


def test_lists_nested_names_and_shared_names_are_understood() -> None:
    env = {
        "AMENDS_MODE": "observe",
        "AMENDS_PROCESSOR__MODULES": "shop.tools, shop.more",
        "AMENDS_PROCESSOR__LIMITS__ATTEMPTS_MAX": "9",
        "AMENDS_KAFKA__LANES": '["payments"]',
    }
    settings = load_settings(Some, "processor", env)
    assert (settings.mode, settings.modules, settings.limits.attempts_max) == (
        "observe",
        ("shop.tools", "shop.more"),
        9,
    )
    assert load_settings(KafkaSettings, "kafka", env).lanes == ("payments",)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("AMENDS_PROCESSOR__ENGIN", "did you mean engine?"),
        ("AMENDS_PROCESOR__ENGINE", "did you mean AMENDS_PROCESSOR__?"),
        # Nobody would read it.
        (
            "AMENDS_REGISTRY__REDIS_URL",
            "sections are callbacks, compensator, kafka, processor, producer, schema_registry",
        ),
        ("AMENDS_MOD", "did you mean AMENDS_MODE?"),
        ("AMENDS_PROCESSOR_ENGINE", "unknown setting AMENDS_PROCESSOR_ENGINE"),
        ("AMENDS_PROCESSOR__", "unknown setting AMENDS_PROCESSOR__"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_known_one_is_named(variable: str, words: str) -> None:
    with pytest.raises(SettingsWrong) as raised:
        load_settings(Some, "processor", {variable: "x"})
    assert words in str(raised.value)


def test_what_kubernetes_injects_is_neither_refused_nor_read() -> None:
    injected = {
        "AMENDS_PORT": "tcp://10.0.0.1:80",
        "AMENDS_PORT_80_TCP": "tcp://10.0.0.1:80",
        "AMENDS_PORT_80_TCP_ADDR": "10.0.0.1",
        "AMENDS_SERVICE_HOST": "10.0.0.1",
        "AMENDS_SERVICE_PORT_HTTP": "80",
        "AMENDS_CONSOLE_SERVICE_HOST": "10.0.0.2",
        "AMENDS_CONSOLE_PORT": "tcp://10.0.0.2:80",
        "AMENDS_CONSOLE_PORT_80_TCP_PROTO": "tcp",
    }
    assert load_settings(Some, "processor", injected).port == 8000


def test_any_option_of_the_client_passes_through() -> None:
    env = {
        "AMENDS_KAFKA__SASL_MECHANISM": "PLAIN",
        "AMENDS_KAFKA__OPTIONS__SASL_USERNAME": "me",
        "AMENDS_KAFKA__SASL_PASSWORD": "word",
        "AMENDS_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
    }
    settings = load_settings(KafkaSettings, "kafka", env)
    assert settings.options == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "word",
        "security.protocol": "SASL_SSL",
    }


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"bootstrap.servers"}))
def test_an_option_that_would_break_a_promise_is_refused_by_name(name: str) -> None:
    variable = "AMENDS_KAFKA__" + name.upper().replace(".", "_")
    with pytest.raises(SettingsWrong, match=f"option {name} is refused"):
        load_settings(KafkaSettings, "kafka", {variable: "1"})


def test_a_name_that_neither_amends_nor_the_client_knows_is_refused() -> None:
    with pytest.raises(SettingsWrong, match=r"did you mean partitions\?"):
        load_settings(KafkaSettings, "kafka", {"AMENDS_KAFKA__PARTITONS": "8"})
    with pytest.raises(SettingsWrong, match="the Kafka client refuses"):
        load_settings(KafkaSettings, "kafka", {"AMENDS_KAFKA__SECURITY_PROTOCOL": "TELEPATHY"})


def test_secrets_are_shown_nowhere() -> None:
    secret = "correct-horse"
    plain = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    settings = KafkaSettings(options={"sasl.password": secret, **plain})
    assert settings.shown()["options"] == {"sasl.password": "********", **plain}
    assert secret not in repr(settings) + str(settings) + str(settings.shown())
    with pytest.raises(SettingsWrong) as raised:
        load_settings(KafkaSettings, "kafka", {"AMENDS_KAFKA__SASL_PASSWORD": secret, "AMENDS_KAFKA__ACKS": "1"})
    assert secret not in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"partitions": 0},
        {"lanes": ("a", "a")},
        {"topic_prefix": "with space"},
        {"bootstrap_servers": ""},
        {"ledger_retention_ms": 3_599_999},
    ],
)
def test_values_that_cannot_be_right_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(SettingsWrong):
        load_settings(KafkaSettings, "kafka", {}, None, **given)


@pytest.mark.parametrize("servers", ["kafka", "kafka:", ":9092", "kafka:99999", "kafka:abc", "kafka:0", "a:1,b"])
def test_an_address_that_no_client_can_mean_is_refused_with_what_it_should_be(servers: str) -> None:
    """librdkafka takes 99999 for 34463 and tries that; another client ends with a traceback."""
    with pytest.raises(ValidationError, match="HOST:PORT"):
        KafkaSettings(bootstrap_servers=servers)


def test_addresses_may_be_several_of_ipv6_and_name_a_protocol() -> None:
    for servers in ("a:1,b:2", "[::1]:9092", "SSL://kafka:9093, kafka-2:9093"):
        assert KafkaSettings(bootstrap_servers=servers).bootstrap_servers == servers


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AMENDS_KAFKA__PARTITIONS", "0", "AMENDS_KAFKA__PARTITIONS: "),
        ("AMENDS_KAFKA__LANES", "a,no lane", "AMENDS_KAFKA__LANES, item 2: "),
        ("AMENDS_PROCESSOR__STALL_MS", "6000", "AMENDS_PROCESSOR__…: STALL_MS (6000) must be at least twice"),
        ("AMENDS_PROCESSOR__STAL_MS", "6000", "unknown setting AMENDS_PROCESSOR__STAL_MS; did you mean stall_ms?"),
    ],
)
def test_what_is_refused_is_named_as_it_was_written(variable: str, value: str, words: str, tmp_path: Path) -> None:
    section = variable.split("__")[0].removeprefix("AMENDS_").lower()
    models: dict[str, type[KafkaSettings] | type[ProcessorSettings]]
    models = {"kafka": KafkaSettings, "processor": ProcessorSettings}
    model = models[section]
    with pytest.raises(SettingsWrong) as raised:
        load_settings(model, section, {variable: value})
    assert str(raised.value).startswith(words)
    name, file = variable.split("__")[1].lower(), tmp_path / "amends.toml"
    file.write_text(f"[{section}]\n{name} = {value if value.isdigit() else value.split(',')}\n")
    with pytest.raises(SettingsWrong) as raised:
        load_settings(model, section, {}, file)
    written = f"{name} of [{section}] in {file}"
    assert str(raised.value).startswith(words.replace(variable, written))


def test_a_file_with_an_unknown_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "amends.toml"
    file.write_text("[kafak]\npartitions = 4\n")
    with pytest.raises(SettingsWrong, match="did you mean kafka"):
        load_settings(KafkaSettings, "kafka", {}, file)
    with pytest.raises(SettingsWrong, match="can't be read"):
        load_settings(KafkaSettings, "kafka", {}, tmp_path / "none.toml")
