"""The outside world of the simulation: remotes of every kind, and what was really done to them.

Nothing here knows amends. A remote takes requests and shows what it has done; the judge reads `World.effects`, which no
part of the pipeline ever sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from amends.producers.outcome import qualified_name
from amends.schemas.codec import encode
from amends.schemas.contract import CallTerms, Contract, Effect, Idempotency, ProbeTerms, UndoTerms, VerifyTerms

SETTLE_MS = 1_000
CALL_LEASE_MS = 4_000
UNDO_LEASE_MS = 3_000


class Declined(Exception):  # noqa: N818 - the declared refusal of every tool here
    """The remote says that it did nothing."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a remote can do, and where its undo gets its arguments from."""

    call: Idempotency
    undo: Idempotency
    verify: bool = False
    probe: bool = False
    from_input: bool = False  # the undo needs no output
    keeps_refusals: bool = False  # under the key, as Stripe does
    lane: str = "default"

    @property
    def name(self) -> str:
        words = [f"call={self.call}", f"undo={self.undo}"]
        words += [word for word in ("verify", "probe", "from_input", "keeps_refusals") if getattr(self, word)]
        return ",".join(words)


KEY, NATURAL, NEITHER = Idempotency.KEY, Idempotency.NATURAL, Idempotency.NEITHER

KINDS: tuple[Kind, ...] = (
    Kind(KEY, KEY, keeps_refusals=True),
    Kind(KEY, KEY, from_input=True),
    Kind(KEY, NEITHER, probe=True),
    Kind(KEY, NEITHER, verify=True, from_input=True),
    Kind(NATURAL, NATURAL, from_input=True),
    Kind(NATURAL, NATURAL, verify=True, from_input=True, probe=True),
    Kind(NATURAL, KEY, from_input=True),
    Kind(NEITHER, KEY, probe=True, keeps_refusals=True),
    Kind(NEITHER, NATURAL, probe=True),
    Kind(NEITHER, NEITHER, verify=True, probe=True),
    Kind(NEITHER, NEITHER, probe=True),
    Kind(NEITHER, NEITHER),
    Kind(KEY, NATURAL, probe=True, verify=True),
)
"""Each kind of remote of the protocol on either side: takes a key, naturally idempotent, can be asked only, neither."""


def contract_of(tool: str, kind: Kind, account: str = "") -> Contract:
    return Contract(
        tool,
        Effect.COMPENSABLE,
        call=CallTerms(kind.call, lease_ms=CALL_LEASE_MS, settle_ms=SETTLE_MS),
        undo=UndoTerms(
            tool,
            kind.lane,
            arguments={"subject": "input.subject"} if kind.from_input else {"number": "output.number"},
            idempotency=kind.undo,
            lease_ms=UNDO_LEASE_MS,
            settle_ms=SETTLE_MS,
            attempts_max=4,
            backoff_ms=200,
            backoff_cap_ms=2_000,
            commutes=kind.undo is NATURAL and not kind.verify,
        ),
        probe=ProbeTerms(tool, lease_ms=2_000, attempts_max=4, backoff_ms=300, backoff_cap_ms=2_000)
        if kind.probe
        else None,
        verify=VerifyTerms(tool) if kind.verify else None,
        refused_by=(qualified_name(Declined),),
        resources=("input.account",) if account else (),
    )


@dataclass(slots=True)
class Tool:
    """One tool of one workflow's agent."""

    name: str
    kind: Kind
    account: str = ""  # what it declares to touch, and touches
    contract: Contract = field(init=False)
    contract_bytes: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.contract = contract_of(self.name, self.kind, self.account)
        self.contract_bytes = encode(self.contract)


@dataclass(slots=True)
class Done:
    """An undo that was really carried out."""

    at_ms: int
    key: str
    by: str


@dataclass(slots=True)
class Deed:
    """An effect in the world. `reference` is the forward key it came with, whether or not the remote minds keys."""

    number: int
    tool: str
    subject: str
    reference: str
    attempt: str
    landed_at_ms: int
    account: str = ""
    names: tuple[str, ...] = ()  # ids of the deeds that it was built on
    undone: list[Done] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"deed-{self.number:04d}"

    @property
    def call(self) -> str:
        """Which call of which workflow it is of, in whatever epoch."""
        return self.subject.partition("@")[0]

    @property
    def output(self) -> dict[str, object]:
        """What the remote says of it."""
        return {"number": self.number, "id": self.id}

    @property
    def is_there(self) -> bool:
        return not self.undone


class Said(Enum):
    DONE = "done"
    NOTHING = "nothing there"
    REFUSED = "refused"


class World:
    """All remotes. A request lands at the moment one of its methods is called."""

    def __init__(self) -> None:
        self.deeds: list[Deed] = []
        self._calls: dict[str, Deed | None] = {}  # by forward key; None is a kept refusal
        self._undos: dict[str, Said] = {}  # by undo key

    def call(
        self, tool: Tool, given: dict[str, Any], key: str, attempt: str, now_ms: int, *, refuse: bool
    ) -> Deed | None:
        """Do it. None: refused, nothing was done."""
        kind, subject = tool.kind, str(given["subject"])
        if kind.call is KEY and key in self._calls:
            return self._calls[key]
        if kind.call is NATURAL:
            there = self._find(tool, subject)
            if there is not None and there.is_there:
                return there
        if refuse:
            if kind.call is KEY and kind.keeps_refusals:
                self._calls[key] = None
            return None
        names = tuple(given.get("on", ()))
        deed = Deed(len(self.deeds), tool.name, subject, key, attempt, now_ms, str(given.get("account", "")), names)
        self.deeds.append(deed)
        self._calls[key] = deed
        return deed

    def undo(self, tool: Tool, arguments: dict[str, object], key: str, by: str, now_ms: int, *, refuse: bool) -> Said:
        """Undo it, as the kind of remote has it."""
        kind = tool.kind
        if kind.undo is KEY and key in self._undos:
            return self._undos[key]
        deed = self.target(tool, arguments)
        if refuse:
            if kind.undo is KEY and kind.keeps_refusals:
                self._undos[key] = Said.REFUSED
            return Said.REFUSED
        if deed is None or (kind.undo is NATURAL and not deed.is_there):
            return Said.NOTHING
        deed.undone.append(Done(now_ms, key, by))
        self._undos[key] = Said.DONE
        return Said.DONE

    def target(self, tool: Tool, arguments: dict[str, object]) -> Deed | None:
        """Return what an undo with these arguments is about."""
        if "number" in arguments:
            number = arguments["number"]
            assert isinstance(number, int)
            return self.deeds[number]
        return self._find(tool, str(arguments["subject"]))

    def happened(self, key: str, shown_before_ms: int) -> Deed | None:
        """Return what a call with this key did, as far as the remote shows it by then."""
        return next((d for d in self.deeds if d.reference == key and d.landed_at_ms <= shown_before_ms), None)

    def is_gone(self, tool: Tool, arguments: dict[str, object], shown_before_ms: int) -> bool:
        """Whether the remote shows, by then, that nothing is left of it."""
        deed = self.target(tool, arguments)
        return deed is None or (bool(deed.undone) and deed.undone[0].at_ms <= shown_before_ms)

    def _find(self, tool: Tool, subject: str) -> Deed | None:
        found = (d for d in reversed(self.deeds) if d.tool == tool.name and d.subject == subject)
        return next(found, None)
