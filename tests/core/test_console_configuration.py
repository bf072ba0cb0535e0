"""`amends config show`: what is in force, where it came from, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from amends.console.configuration import HIDDEN, Setting, in_force
from amends.kafka.settings import KafkaSettings


class RegistrySettings(BaseModel):
    """A part's settings, as a part would have them."""

    mode: str = "enforce"
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    token: str = ""
    hosts: tuple[str, ...] = ()


def shown(env: dict[str, str]) -> dict[str, Setting]:
    return {setting.name: setting for setting in in_force(RegistrySettings, "compensator", env)}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://:geheim@redis:6379/0", f"rediss://{HIDDEN}@redis:6379/0"),
        ("redis://ann:ge@heim@redis", f"redis://{HIDDEN}@redis"),
        ("redis://redis/0?password=geheim&db=1", f"redis://redis/0?password={HIDDEN}&db={HIDDEN}"),
        ("geheim", HIDDEN),
    ],
)
def test_of_an_address_the_host_is_shown_and_no_password(url: str, expected: str) -> None:
    setting = shown({"AMENDS_COMPENSATOR__REDIS_URL": url})["redis_url"]
    assert setting.value == expected
    assert setting.origin == "AMENDS_COMPENSATOR__REDIS_URL"


def test_what_is_named_like_a_secret_is_hidden() -> None:
    assert shown({"AMENDS_COMPENSATOR__TOKEN": "geheim"})["token"].value == HIDDEN


def test_every_setting_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "amends.toml"
    file.write_text('[compensator]\nhosts = ["a", "b"]\nmode = "off"\n')
    env = {"AMENDS_CONFIG_FILE": str(file), "AMENDS_MODE": "observe"}
    found = shown(env)
    assert (found["hosts"].value, found["hosts"].origin) == ("a, b", str(file))
    assert (found["mode"].value, found["mode"].origin) == ("observe", "AMENDS_MODE")
    assert found["redis_url"].origin == "default"


def test_options_of_the_client_are_found_however_they_were_spelt(tmp_path: Path) -> None:
    file = tmp_path / "amends.toml"
    file.write_text(
        '[kafka.options]\n"security.protocol" = "SASL_SSL"\n"sasl.mechanism" = "PLAIN"\nsasl_username = "me"\n'
    )
    env = {"AMENDS_CONFIG_FILE": str(file), "AMENDS_KAFKA__SASL_PASSWORD": "geheim"}
    found = {setting.name: setting for setting in in_force(KafkaSettings, "kafka", env)}
    assert found["options.sasl.mechanism"].origin == str(file)
    assert found["options.sasl.password"] == Setting(
        "kafka", "options.sasl.password", HIDDEN, "AMENDS_KAFKA__SASL_PASSWORD"
    )
