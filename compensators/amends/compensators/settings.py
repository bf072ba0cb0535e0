"""Settings of a compensator: `AMENDS_COMPENSATOR__<NAME>`, or table `[compensator]` of the settings file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class CompensatorSettings(BaseModel):
    """What a compensator may be told. Durations in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    mode: Literal["off", "observe", "enforce"] = "enforce"
    """AMENDS_MODE, shared by all parts. A compensator undoes nothing unless it is `enforce`."""

    modules: tuple[str, ...] = ()
    """Modules that declare the tools whose undos this lane runs; imported at start, and by nothing a record says."""

    lanes: tuple[str, ...] = ()
    """The undo lanes this process serves; empty: those of the loaded tools. They share one follower of the ledger, so
    let lanes share a process."""

    redis_url: SecretStr | None = SecretStr("redis://127.0.0.1:6379/0")
    """The registry's Redis or Valkey; it must not evict. Empty: no registry, the read back alone decides. Forms:
    redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB; rediss… for TLS."""

    redis_cluster: bool = False
    """Whether redis_url names a node of a Redis Cluster."""

    redis_user: str | None = None
    """The ACL user; may stand in redis_url instead."""

    redis_password: SecretStr | None = None

    redis_sentinel_user: str | None = None
    redis_sentinel_password: SecretStr | None = None
    """For the sentinels, which have users of their own."""

    redis_ssl_ca_location: str | None = None
    """The authorities that may have signed Redis' certificate, PEM; None: those of the system."""

    redis_ssl_certificate_location: str | None = None
    redis_ssl_key_location: str | None = None
    redis_ssl_key_password: SecretStr | None = None
    """Who we are, where Redis asks for a certificate."""

    redis_check: Literal["read", "trust"] = "read"
    """Whether the settings of the Redis are read at start (CONFIG GET), or you say that it does not evict."""

    registry_prefix: str = Field(default="amends", pattern=r"^[A-Za-z0-9._-]+$")
    """What the registry's keys begin with."""

    processes: int = Field(default=2, ge=0, le=256)
    """Processes for handlers that are plain functions, each runs one at a time. 0 where all are coroutines."""

    concurrency_max: int = Field(default=256, ge=1, le=10_000)
    """Commands that are carried out at once; those of one workflow follow one another."""

    tool_concurrency_max: int | None = Field(default=None, ge=1)
    """Those of them that begin with the same tool: a slow one leaves room for the others. None: three quarters."""

    waiting_max: int = Field(default=2_000, ge=1)
    """Commands taken and not begun, after which no more are taken."""

    missing_handlers: Literal["refuse", "incident"] = "refuse"
    """What to do at start if commands wait for handlers that no loaded module has: refuse to start, or start, let those
    fail until their budget is spent, and have a person asked."""

    instance_id: str | None = None
    """Static membership: restarted under the same name within the session, a compensator keeps its partitions. Give
    each its own. The price: a clean stop is noticed after the session, too."""

    session_timeout_ms: int = Field(default=6_000, ge=1_000, le=60_000)
    """How long a dead compensator keeps its partitions."""

    publish_deadline_ms: int = Field(default=10_000, ge=100)
    """After this a fact that was not acknowledged counts as uncertain."""

    drain_ms: int = Field(default=30_000, ge=0)
    """On SIGTERM what was begun may still end for so long; the rest is left to others."""

    stall_ms: int = Field(default=120_000, ge=5_000)
    """Unhealthy if commands wait and none ended for so long. Longer than the longest lease of this lane."""

    health_host: str = "127.0.0.1"
    health_port: int | None = Field(default=None, ge=0, le=65_535)
    """Port of `/healthz` and `/metrics`; None: no server; 0: any free port, which is logged."""

    @property
    def of_tool_max(self) -> int:
        """`tool_concurrency_max` in force."""
        return self.tool_concurrency_max or max(1, self.concurrency_max * 3 // 4)
