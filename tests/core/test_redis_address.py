"""Where the registry's Redis is: every form of its URL, and what does not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amends.compensators.redis_address import Credentials, RedisAddress, Tls, address_of
from amends.compensators.settings import CompensatorSettings
from amends.kafka.errors import SettingsWrong

WORD = "hush-hush"


def address(url: str, **more: Any) -> RedisAddress | None:
    return address_of(CompensatorSettings.model_validate({"redis_url": url, **more}))


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://host", RedisAddress((("host", 6379),))),
        ("redis://host:7000/3", RedisAddress((("host", 7000),), database=3)),
        ("rediss://[::1]:7000", RedisAddress((("::1", 7000),), tls=Tls())),
        ("redis://me:p%40ss@host", RedisAddress((("host", 6379),), own=Credentials("me", "p@ss"))),
        ("redis://:word@host", RedisAddress((("host", 6379),), own=Credentials(None, "word"))),
        ("unix:///run/redis.sock", RedisAddress((), path="/run/redis.sock")),
        (
            "redis+sentinel://a,b:26380/registry/2",
            RedisAddress((("a", 26379), ("b", 26380)), service="registry", database=2),
        ),
        ("rediss+sentinel://a/registry", RedisAddress((("a", 26379),), service="registry", tls=Tls())),
    ],
)
def test_every_form_is_read(url: str, wanted: RedisAddress) -> None:
    assert address(url) == wanted


def test_none_means_no_registry() -> None:
    assert address("") is None


def test_credentials_and_files_come_from_settings_of_their_own(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    found = address("rediss://host", redis_user="me", redis_password=WORD, redis_ssl_ca_location=str(ca))
    assert found is not None
    assert (found.own, found.tls) == (Credentials("me", WORD), Tls(ca=str(ca)))
    assert WORD not in repr(found)


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        ("redis:6379", {}, "no URL of a Redis"),
        ("http://host", {}, "no URL of a Redis"),
        ("redis://", {}, "no URL of a Redis"),
        ("redis://host:port", {}, "no URL of a Redis"),
        ("redis://host/one", {}, "no URL of a Redis"),
        ("redis://a,b", {}, "no URL of a Redis"),
        ("unix://host/path", {}, "no URL of a Redis"),
        (f"redis://me:{WORD}#x@host", {}, "no URL of a Redis|options behind"),
        ("redis://host?ssl_cert_reqs=none", {}, "options behind"),
        ("redis+sentinel://a,b", {}, "names no service"),
        (f"redis://me:{WORD}@host", {"redis_password": WORD}, "leave one out"),
        (
            "redis://host",
            {"redis_ssl_ca_location": "/ca"},
            "no effect: begin AMENDS_.*_URL with rediss",
        ),
        ("rediss://host", {"redis_ssl_ca_location": "/no/such"}, "SSL_CA_LOCATION: the file /no/such can't be read"),
        ("redis://host", {"redis_sentinel_password": WORD}, "SENTINEL_… would have no effect"),
        ("redis+sentinel://a/s", {"redis_cluster": True}, "CLUSTER=true wants"),
        ("unix:///run/redis", {"redis_cluster": True}, "CLUSTER=true wants"),
        ("redis://host/1", {"redis_cluster": True}, "only database 0"),
        ("rediss://host", {"redis_cluster": True, "redis_ssl_key_password": WORD}, "takes none for a cluster"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name_and_without_the_secret(
    url: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsWrong, match=words) as raised:
        address(url, **more)
    assert "AMENDS_COMPENSATOR__REDIS_" in str(raised.value) or "only database 0" in str(raised.value)
    assert WORD not in str(raised.value)
