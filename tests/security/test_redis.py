"""A secured Redis: TLS, mutual TLS, a user with the least rights, sentinels, a cluster; and what keeps us out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kafka_parts import eventually
from tests.processes import free_port_with_a_bus
from tests.security.certificates import Authority
from tests.security.redis_servers import (
    BOSS,
    LEAST,
    ON_A_CLUSTER,
    READS,
    USER,
    WORD,
    await_answer,
    boss,
    durable,
    redis_server,
    tls_lines,
    user_line,
)

from amends.compensators.redis_registry import RegistryUnusable
from amends.compensators.registry import ClaimRequest, Go, Registry, State
from amends.compensators.settings import CompensatorSettings
from amends.compensators.starting import opened_registry
from amends.local.children import free_port

pytestmark = [pytest.mark.redis]

ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 5_000
WITHIN_S = 9.0


def settings(port: int, scheme: str = "rediss", **more: Any) -> CompensatorSettings:
    given = {"redis_url": f"{scheme}://127.0.0.1:{port}", "redis_user": USER, "redis_password": WORD, **more}
    return CompensatorSettings.model_validate(given)


async def works(registry: Registry) -> bool:
    """Whether every verb is answered by a server."""
    key, workflow = uuid.uuid4().hex, "w"
    (answer,) = await registry.claim((ClaimRequest(key, 0, "me", LEASE_MS, workflow),))
    if not isinstance(answer, Go) or answer.fence < 0:
        return False
    renewed = await registry.renew(key, 0, answer.fence, LEASE_MS, workflow)
    return renewed and await registry.settle(key, 0, answer.fence, State.FAILED, None, workflow)


@dataclass
class Servers:
    """Ports of TLS servers by what is odd about them, one plain, and who signed."""

    ports: dict[str, int]
    authority: Authority
    folder: Path

    def tls(self, **more: str) -> dict[str, Any]:
        return {"redis_ssl_ca_location": str(self.authority.file), **more}

    def boss(self, name: str) -> Any:
        options = {} if name == "plain" else {"ssl": True, "ssl_ca_certs": str(self.authority.file)}
        return boss(self.ports[name], **options)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("redis")
    authority = Authority(folder, "ca")
    made = Servers(
        {name: free_port() for name in ("good", "mutual", "expired", "misnamed", "plain")}, authority, folder
    )
    own = {
        "good": authority.sign("redis"), "mutual": authority.sign("redis"),
        "expired": authority.sign("redis", expired=True), "misnamed": authority.sign("redis", host="else.example"),
    }  # fmt: skip
    users = [f"user default on >{BOSS} ~* &* +@all", user_line()]
    with contextlib.ExitStack() as stack:
        for name, port in made.ports.items():
            mutual = name == "mutual"
            wire = tls_lines(port, own[name], authority, clients=mutual) if name in own else [f"port {port}"]
            stack.enter_context(redis_server(folder / name, [*wire, *users, *durable()]))
        await_answer(made.ports["plain"])
        await_answer(made.ports["good"], ssl=True, ssl_ca_certs=str(authority.file))
        # Who is odd is asked without looking closely.
        for name in ("expired", "misnamed"):
            await_answer(made.ports[name], ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False)
        me = authority.sign("me")
        await_answer(
            made.ports["mutual"], ssl=True, ssl_ca_certs=str(authority.file),
            ssl_certfile=str(me.certificate), ssl_keyfile=str(me.key),
        )  # fmt: skip
        yield made


async def test_a_user_with_the_least_rights_does_every_verb_through_tls_without_a_warning(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_registry(settings(servers.ports["good"], **servers.tls()), lambda: None) as registry:
        assert await works(registry)
        await asyncio.to_thread(servers.boss("good").script_flush)
        assert await works(registry), "a server that was started anew has no scripts"
    assert caplog.text == ""


async def test_user_and_password_may_stand_in_the_url(servers: Servers) -> None:
    url = f"redis://{USER}:word-of%3Aamends%2F%25@127.0.0.1:{servers.ports['plain']}/0"
    given = CompensatorSettings.model_validate({"redis_url": url})
    async with opened_registry(given, lambda: None) as registry:
        assert await works(registry)


async def test_a_certificate_with_a_password_is_shown_where_redis_asks_for_one(servers: Servers) -> None:
    me = servers.authority.sign("amends", password="pass phrase")
    own = {
        "redis_ssl_certificate_location": str(me.certificate), "redis_ssl_key_location": str(me.key),
        "redis_ssl_key_password": "pass phrase",
    }  # fmt: skip
    async with opened_registry(settings(servers.ports["mutual"], **servers.tls(**own)), lambda: None) as registry:
        assert await works(registry)


# --- what keeps us out ------------------------------------------------------------------------------------------------


async def refused(given: CompensatorSettings, caplog: pytest.LogCaptureFixture) -> str:
    """Return what the start says of a Redis that it refuses, quickly and without a secret."""
    began_at = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(RegistryUnusable) as raised:
        async with opened_registry(given, lambda: None):
            pytest.fail("it was opened")
    assert time.monotonic() - began_at < WITHIN_S
    for secret in (WORD, BOSS, "wrong word"):
        assert secret not in f"{raised.value}{caplog.text}{given!r}"
    return str(raised.value)


async def test_a_wrong_password_an_unknown_user_and_none_at_all_are_refused_by_name(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    port = servers.ports["plain"]
    for more in ({"redis_password": "wrong word"}, {"redis_user": "nobody"}, {"redis_user": None}):
        said = await refused(settings(port, "redis", **more), caplog)
        assert "AMENDS_COMPENSATOR__REDIS_PASSWORD" in said
    nobody = CompensatorSettings.model_validate({"redis_url": f"redis://127.0.0.1:{port}"})
    assert "AMENDS_COMPENSATOR__REDIS_USER" in await refused(nobody, caplog)


@pytest.mark.parametrize("command", LEAST)
async def test_each_of_the_least_rights_is_needed_and_its_lack_is_said(
    servers: Servers, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin = servers.boss("plain")
    admin.execute_command("ACL", "SETUSER", USER, f"-{command}")
    try:
        said = await refused(settings(servers.ports["plain"], "redis"), caplog)
    finally:
        admin.execute_command("ACL", "SETUSER", USER, f"+{command}")
        admin.close()
    assert "lets this user do too little" in said
    assert f"+{command}" in said


async def test_keys_that_are_others_are_refused(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    said = await refused(settings(servers.ports["plain"], "redis", registry_prefix="other"), caplog)
    assert "AMENDS_COMPENSATOR__REGISTRY_PREFIX" in said


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("expired", ("expired", "needs a new one")),
        ("misnamed", ("mismatch", "AMENDS_COMPENSATOR__REDIS_URL")),
        ("plain", ("speaks no TLS", "AMENDS_COMPENSATOR__REDIS_URL with redis")),
        ("mutual", ("certificate", "AMENDS_COMPENSATOR__REDIS_SSL_CERTIFICATE_LOCATION")),
    ],
)
async def test_tls_that_does_not_fit_is_refused_by_name(
    servers: Servers, server: str, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    said = await refused(settings(servers.ports[server], **servers.tls()), caplog)
    for word in words:
        assert word in said


async def test_an_unknown_authority_is_refused_by_name(
    servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")
    for more in ({"redis_ssl_ca_location": str(other.file)}, {}):
        said = await refused(settings(servers.ports["good"], **more), caplog)
        assert "AMENDS_COMPENSATOR__REDIS_SSL_CA_LOCATION" in said


async def test_a_plain_client_at_a_tls_port_is_told_so(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    said = await refused(settings(servers.ports["good"], "redis"), caplog)
    assert "speaks TLS: begin AMENDS_COMPENSATOR__REDIS_URL with rediss" in said


# --- sentinels --------------------------------------------------------------------------------------------------------

SENTINEL_USER = "user amends on >sentinel-word resetchannels -@all +sentinel|masters +sentinel|get-master-addr-by-name"


@dataclass
class Watched:
    """A primary, its replica, and the sentinel that watches them."""

    primary: subprocess.Popen[bytes]
    ports: dict[str, int]

    def settings(self, service: str = "registry", **more: object) -> CompensatorSettings:
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.ports['sentinel']}/{service}"
        sentinel = {"redis_sentinel_user": USER, "redis_sentinel_password": "sentinel-word"}
        own = {"redis_user": USER, "redis_password": WORD}
        return CompensatorSettings.model_validate({"redis_url": url, **own, **sentinel, **more})


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    ports = {name: free_port() for name in ("primary", "replica", "sentinel")}
    users = [f"user default on >{BOSS} ~* &* +@all", user_line(), f"masterauth {BOSS}", *durable()]
    sentinel = [
        f"port {ports['sentinel']}", f"user default on >{BOSS} ~* &* +@all", SENTINEL_USER,
        f"sentinel monitor registry 127.0.0.1 {ports['primary']} 1", f"sentinel auth-pass registry {BOSS}",
        "sentinel down-after-milliseconds registry 700", "sentinel failover-timeout registry 4000",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(redis_server(tmp_path / "primary", [f"port {ports['primary']}", *users]))
        await_answer(ports["primary"])
        follows = [f"port {ports['replica']}", f"replicaof 127.0.0.1 {ports['primary']}", "repl-diskless-sync-delay 0"]
        stack.enter_context(redis_server(tmp_path / "replica", [*follows, *users]))
        await_answer(ports["replica"])
        with contextlib.closing(boss(ports["replica"])) as replica:
            eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        stack.enter_context(redis_server(tmp_path / "sentinel", sentinel, sentinel=True))
        await_answer(ports["sentinel"])
        with contextlib.closing(boss(ports["sentinel"])) as asked:
            eventually(lambda: _replicas_of(asked) == 1)
        yield Watched(primary, ports)


def _replicas_of(sentinel: Any) -> int:
    return int(sentinel.sentinel_masters()["registry"]["num-slaves"])


async def test_behind_sentinels_the_registry_goes_on_at_the_new_primary(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_registry(watched.settings(), lambda: None) as registry:
        assert await works(registry)
        assert caplog.text == "", "a sentinel that is away, of several, is no news"
        watched.primary.kill()
        assert await registry.claim((ClaimRequest("k", 0, "me", LEASE_MS, "w"),)) == (Go(-1),), "the read back decides"
        give_up_at = time.monotonic() + 60
        while not await works(registry):
            assert time.monotonic() < give_up_at, "no failover"
            await asyncio.sleep(0.1)
    with contextlib.closing(boss(watched.ports["replica"])) as replica:
        assert replica.info("replication")["role"] == "master"
    assert "is back" in caplog.text


async def test_a_service_that_sentinels_do_not_know_and_a_wrong_word_for_them_are_refused(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refused(watched.settings("registri"), caplog)
    assert "know no service 'registri', but registry" in said
    said = await refused(watched.settings(redis_sentinel_password="wrong word"), caplog)
    assert "AMENDS_COMPENSATOR__REDIS_SENTINEL_PASSWORD" in said
    said = await refused(watched.settings(redis_password="wrong word"), caplog)
    assert "AMENDS_COMPENSATOR__REDIS_PASSWORD" in said


# --- a cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Servers]:
    """Three primaries that speak TLS, among themselves too."""
    console = shutil.which("redis-cli")
    if console is None:
        pytest.skip("there is no `redis-cli` on the PATH")
    authority = Authority(tmp_path, "ca")
    own, ports = authority.sign("redis"), [free_port_with_a_bus() for _ in range(3)]
    least = user_line(commands=(*LEAST, *READS, *ON_A_CLUSTER))
    lines = [f"user default on >{BOSS} ~* &* +@all", least, *durable(), "cluster-enabled yes", "tls-cluster yes"]
    tls: dict[str, object] = {"ssl": True, "ssl_ca_certs": str(authority.file)}
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(redis_server(tmp_path / str(port), [*tls_lines(port, own, authority), *lines]))
        for port in ports:
            await_answer(port, **tls)
        nodes = [f"127.0.0.1:{port}" for port in ports]
        create = [console, "--tls", "--cacert", str(authority.file), "-a", BOSS, "--cluster", "create", *nodes]
        subprocess.run([*create, "--cluster-yes"], check=True, capture_output=True, timeout=60)
        for port in ports:
            with contextlib.closing(boss(port, **tls)) as client:
                eventually(lambda client=client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")  # type: ignore[misc]
        yield Servers({"first": ports[0]}, authority, tmp_path)


async def test_a_cluster_with_tls_and_a_user_with_the_least_rights_serves_many_workflows(
    cluster: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings(cluster.ports["first"], redis_cluster=True, **cluster.tls())
    async with opened_registry(given, lambda: None) as registry:
        claims = [registry.claim((ClaimRequest(f"k{n}", 0, "me", LEASE_MS, f"w{n}"),)) for n in range(30)]
        for (answer,) in await asyncio.gather(*claims):
            assert isinstance(answer, Go)
            assert answer.fence > 0
        assert await works(registry)
    assert caplog.text == ""
    wrong = settings(cluster.ports["first"], redis_cluster=True, **cluster.tls(redis_password="wrong word"))
    said = await refused(wrong, caplog)
    assert "AMENDS_COMPENSATOR__REDIS_PASSWORD" in said


def test_the_documents_show_the_user_of_these_tests() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert user_line(word="…") in page
    assert " ".join(f"+{command}" for command in ON_A_CLUSTER) in page
    assert SENTINEL_USER.replace("sentinel-word", "…") in page
