"""The contract of a tool: everything needed to undo a call from its intent alone.

It travels in a step's first StepEvent as opaque bytes (Avro single-object encoding, built once per tool), so that
the fold keeps it once per digest and an undo never depends on the code that made the call still being deployed.
Names of things, never classes: no record makes a reader import anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PLAIN, COMPARE = "plain", "compare"
"""Values of `Contract.restores`."""

RESULT, REFUSE, ALLOW = "result", "refuse", "allow"
"""Values of `Contract.duplicates`."""

ECHO, STRICT = "echo", "strict"
"""Values of `Contract.fence`."""

DECLARED = "declared"
"""Attribute of a contract that counts as unclassified because it has no undo: the class its tool was declared with."""


class Effect(StrEnum):
    """What a call does to the outside world. R, C and I of the protocol are reversible, compensable, irreversible."""

    NONE = "none"
    REVERSIBLE = "reversible"
    COMPENSABLE = "compensable"
    IRREVERSIBLE = "irreversible"
    UNCLASSIFIED = "unclassified"


class Idempotency(StrEnum):
    """What a remote does with the same request sent twice."""

    KEY = "key"  # takes an idempotency key and remembers it for key_ttl_ms
    NATURAL = "natural"  # a repeat changes nothing
    NEITHER = "neither"  # a repeat is a second effect


def _reusable_ms(key_ttl_ms: int | None, lease_ms: int) -> int | None:
    """A send may be under way for a lease, and must arrive while the remote remembers the key."""
    return None if key_ttl_ms is None else max(0, key_ttl_ms - lease_ms)


@dataclass(frozen=True, slots=True)
class CallTerms:
    """Terms of the forward call."""

    idempotency: Idempotency = Idempotency.NEITHER
    key_ttl_ms: int | None = None  # None: the remote never forgets; after it the remote counts as NEITHER
    lease_ms: int = 60_000  # how long one send may stay open before it counts as unknown
    settle_ms: int = 5_000  # how long after an attempt ended its effect may still appear
    accepted_ms: int = 3_600_000  # how long a remote that took the request (202) may take to do it

    @property
    def key_reusable_ms(self) -> int | None:
        """How long after its first use a key may be sent once more; None: for ever."""
        return _reusable_ms(self.key_ttl_ms, self.lease_ms)


@dataclass(frozen=True, slots=True)
class UndoTerms:
    """Terms of the undo: who runs it, with what, how often."""

    handler: str  # the name a compensator finds it by; for kind python the tool's name
    lane: str  # the team with the credentials
    kind: str = "python"  # python, http or mcp; the last two are data alone (specification)
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])  # parameter -> JMESPath over the step
    idempotency: Idempotency = Idempotency.NEITHER
    key_ttl_ms: int | None = None
    lease_ms: int = 30_000
    settle_ms: int = 5_000
    attempts_max: int = 5
    backoff_ms: int = 1_000  # doubles with each spent attempt
    backoff_cap_ms: int = 60_000
    window_ms: int | None = None  # the undo is possible this long after STARTED; None: for ever
    residue: str = ""  # what a perfect undo still leaves
    commutes: bool = False
    specification: bytes | None = None
    optional_arguments: tuple[str, ...] = ()  # may resolve to nothing: the handler has a default
    agent_tool: str = ""  # the tool with which an agent undoes the same by itself
    covers: tuple[str, ...] = ()  # tools whose steps are undone by this undo, where they name what this step made
    accepted_ms: int = 3_600_000  # how long a remote that took the request (202) may take to do it
    undos_max: int | None = None  # under way at once, of this tool, over all workflows; None: as the processor is told
    undos_per_minute: int | None = None  # begun, of this tool, over all workflows; None: as the processor is told
    breaker_failures: int | None = None  # workflows in a row whose undos failed, until the tool is left alone; 0: never

    @property
    def key_reusable_ms(self) -> int | None:
        """How long after its first use a key may be sent once more; None: for ever."""
        return _reusable_ms(self.key_ttl_ms, self.lease_ms)


@dataclass(frozen=True, slots=True)
class ProbeTerms:
    """Terms of the question "did the call happen?"."""

    handler: str
    kind: str = "python"
    lease_ms: int = 30_000
    attempts_max: int = 5
    backoff_ms: int = 1_000
    backoff_cap_ms: int = 60_000
    specification: bytes | None = None


@dataclass(frozen=True, slots=True)
class VerifyTerms:
    """Terms of the question "did the undo take?"."""

    handler: str
    kind: str = "python"
    specification: bytes | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """A tool's declaration as data. Durations in milliseconds."""

    tool_name: str
    effect: Effect
    tool_version: str = ""
    call: CallTerms = CallTerms()
    undo: UndoTerms | None = None
    probe: ProbeTerms | None = None
    verify: VerifyTerms | None = None
    refused_by: tuple[str, ...] = ()  # qualified names of exceptions that mean "did not happen"
    resources: tuple[str, ...] = ()  # keys it touches, JMESPath over input
    captures: bool = False
    restores: str = PLAIN  # plain, or compare: undo only if the world still shows what the step wrote
    repeatable: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    writes: str = ""  # JMESPath over the step: what its capture reads once the call has happened; "": it is read again
    failed_calls_max: int | None = None  # calls of this tool that may fail in one epoch; one more turns the workflow
    duplicates: str = RESULT  # an equal call that a model plans again: result, refuse or allow
    fence: str = ECHO  # echo, or strict: not called before the fold has seen its STARTED in an epoch that goes on
    approval_ms: int | None = None  # a person approves each call, asked for so long; None: none is needed
    accepted_when: str = ""  # JMESPath over input and output: the remote only took the request and does it later


def lane_of(contract: Contract) -> str:
    """Return the lane with the credentials for this tool; its name up to the first dot where none is declared."""
    return contract.undo.lane if contract.undo is not None else contract.tool_name.partition(".")[0]
