"""The one settings model for every Kafka client of amends."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from amends.kafka.loading import load_settings
from amends.kafka.options import check_options
from amends.kafka.secrets import is_secret
from amends.schemas.releases import released_versions
from amends.schemas.topics import DAY_MS, Topics

__all__ = ["KafkaSettings", "load_settings"]

HOUR_MS = 3_600_000

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)]


class KafkaSettings(BaseModel):
    """Where the cluster is, how the topics are named and laid out.

    From the environment: `AMENDS_KAFKA__PARTITIONS=8`. Any other name is an option of the client (librdkafka) in
    capitals, with `_` for `.`: `AMENDS_KAFKA__SASL_MECHANISM=PLAIN`. Options that would break a promise are refused.

    Attributes:
        bootstrap_servers: `host:port`, separated by commas.
        topic_prefix: what the names of all topics begin with.
        dead_letter_prefix: what stands before the name of a topic in the name of its dead letters.
        lanes: the undo lanes that exist.
        partitions: the one partition count of all topics that are co-partitioned; never changed in place.
        replication_factor: for topics that are created, and the least that is accepted.
        ledger_retention_ms: for a ledger that is created, and the least that is accepted: twice the longest workflow,
            an hour or more.
        records_of: the release whose records are written, while processes of it still run; None: this one's
            (docs/upgrades.md).
        embedded: the broker is the embedded one: no isolation, no append time, no compaction, memory only; a fetch
            there doesn't wake on new data, so clients ask more often.
        options: options of the client, as librdkafka spells them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap_servers: str = Field(default="127.0.0.1:9092", min_length=1)
    topic_prefix: Name = "amends"
    dead_letter_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = "dlq."
    lanes: tuple[Name, ...] = ("default",)
    partitions: PositiveInt = 8
    replication_factor: PositiveInt = 3
    ledger_retention_ms: Annotated[int, Field(ge=HOUR_MS)] = 30 * DAY_MS
    records_of: str | None = None
    embedded: bool = False
    options: dict[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers_have_ports(cls, servers: str) -> str:
        for server in servers.split(","):
            host, _, port = server.strip().rpartition("://")[2].rpartition(":")
            if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
                raise ValueError(f"{server.strip()!r} is no HOST:PORT, with a port of 1 to 65535")
        return servers

    @field_validator("lanes")
    @classmethod
    def _lanes_differ(cls, lanes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(lanes)) != len(lanes):
            raise ValueError("two lanes have the same name")
        return lanes

    @field_validator("records_of")
    @classmethod
    def _release_is_known(cls, version: str | None) -> str | None:
        if version is not None and version not in released_versions():
            raise ValueError(f"no release {version!r}: those whose records can be written are {_listed()}")
        return version

    @model_validator(mode="before")
    @classmethod
    def _bare_names_are_options(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = {name: value for name, value in given.items() if name in cls.model_fields}
        bare = {name: value for name, value in given.items() if name not in cls.model_fields}
        options = {**bare, **(fields.get("options") or {})}
        return {**fields, "options": {name.replace("_", "."): str(value) for name, value in options.items()}}

    @model_validator(mode="after")
    def _options_keep_the_promises(self) -> Self:
        check_options(self.options, known_fields=type(self).model_fields)
        return self

    @property
    def topics(self) -> Topics:
        return Topics(prefix=self.topic_prefix, dead_letter_prefix=self.dead_letter_prefix, lanes=self.lanes)

    def shown(self) -> dict[str, object]:
        """Return the settings for people, with secrets hidden."""
        options = {name: "********" if is_secret(name) else value for name, value in self.options.items()}
        return {**self.model_dump(exclude={"options"}), "options": options}


def _listed() -> str:
    return ", ".join(released_versions())
