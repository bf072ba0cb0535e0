"""The outside world of the simulation: remotes of every kind, and what was really done to them.

Nothing here knows amends. A remote takes requests and shows what it has done; the judge reads `World.effects`, which no
part of the pipeline ever sees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from amends.producers.outcome import qualified_name
from amends.schemas.codec import encode
from amends.schemas.contract import (
    COMPARE,
    PLAIN,
    CallTerms,
    Contract,
    Effect,
    Idempotency,
    ProbeTerms,
    UndoTerms,
    VerifyTerms,
)

BY_HAND = "by hand"
SETTLE_MS = 1_000
CALL_LEASE_MS = 4_000
UNDO_LEASE_MS = 3_000
LATER_MS = 6_000
"""How long a remote that took a request (202) has, at most."""
ACCEPTED_MS = 8_000
APPROVAL_MS = 6_000


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
    key_ttl_ms: int | None = None  # how long it remembers a key, on either side; None: for ever
    irreversible: bool = False
    window_ms: int | None = None  # in which it can be undone
    lags: bool = False  # shows what was done always a little later
    compares: bool = False  # it sets a register that others set, too
    later: bool = False  # it takes a call (202) and does it later, or not at all, and says so by a callback
    undo_later: bool = False  # so it does with an undo
    approval: bool = False  # a person approves each call

    @property
    def name(self) -> str:
        words = [f"call={self.call}", f"undo={self.undo}"]
        flags: tuple[str, ...] = (
            "verify",
            "probe",
            "from_input",
            "keeps_refusals",
            "irreversible",
            "window_ms",
            "lags",
        )
        flags += ("lags", "compares", "later", "undo_later", "approval", "key_ttl_ms")
        words += [word for word in flags if getattr(self, word)]
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

ODD_KINDS: tuple[Kind, ...] = (
    Kind(NATURAL, NATURAL, from_input=True, compares=True),
    Kind(NATURAL, NATURAL, from_input=True, compares=True, probe=True, lags=True),
    Kind(KEY, KEY, irreversible=True, probe=True),
    Kind(NEITHER, KEY, irreversible=True),
    Kind(KEY, KEY, key_ttl_ms=9_000),
    Kind(KEY, KEY, key_ttl_ms=9_000, from_input=True, probe=True),
    Kind(KEY, NATURAL, key_ttl_ms=15_000, from_input=True, keeps_refusals=True),
    Kind(KEY, KEY, window_ms=4_000),
    Kind(NEITHER, NEITHER, probe=True, verify=True, window_ms=12_000, lags=True),
    Kind(KEY, NEITHER, verify=True, probe=True, lags=True),
    Kind(NEITHER, NATURAL, probe=True, verify=True, lags=True),
)
"""What is worth a layer of its own: keys that age, windows that close, registers others write to, what can't be undone,
and remotes that always show late what they did."""


SLOW_KINDS: tuple[Kind, ...] = (
    Kind(KEY, KEY, probe=True, later=True),
    Kind(NEITHER, KEY, probe=True, later=True, undo_later=True),
    Kind(NATURAL, NATURAL, from_input=True, probe=True, later=True, verify=True),
    Kind(KEY, KEY, from_input=True, later=True),
    Kind(KEY, NEITHER, verify=True, from_input=True, undo_later=True),
    Kind(NEITHER, NEITHER, probe=True, verify=True, undo_later=True),
    Kind(NATURAL, NATURAL, from_input=True, verify=True, undo_later=True),
)
"""Remotes that take a request and do it later. Where the 202 is lost nobody knows of it: there the remote takes
a key, or says, asked by probe or verify, that it is at it; else `settle_ms` would have to be as long as it may take."""

GUARDED_KINDS: tuple[Kind, ...] = (
    Kind(KEY, KEY, approval=True),
    Kind(NEITHER, NATURAL, probe=True, approval=True),
    Kind(KEY, KEY, irreversible=True, probe=True, approval=True),
)
"""Calls that a person approves first."""


@lru_cache(4_096)
def _declared(tool: str, kind: Kind, account: str) -> tuple[Contract, bytes]:
    contract = contract_of(tool, kind, account)
    return contract, encode(contract)


def contract_of(tool: str, kind: Kind, account: str = "") -> Contract:
    return Contract(
        tool,
        Effect.IRREVERSIBLE if kind.irreversible else Effect.COMPENSABLE,
        call=CallTerms(kind.call, kind.key_ttl_ms, CALL_LEASE_MS, SETTLE_MS, accepted_ms=ACCEPTED_MS),
        undo=None if kind.irreversible else _undo_of(tool, kind),
        probe=ProbeTerms(tool, lease_ms=2_000, attempts_max=4, backoff_ms=300, backoff_cap_ms=2_000)
        if kind.probe
        else None,
        verify=VerifyTerms(tool) if kind.verify else None,
        refused_by=(qualified_name(Declined),),
        resources=("input.account",) if account else (),
        approval_ms=APPROVAL_MS if kind.approval else None,
        accepted_when="output.status == 'pending'" if kind.later else "",
        captures=kind.compares,
        restores=COMPARE if kind.compares else PLAIN,
        writes="{value: output.id}" if kind.compares else "",
    )


def _undo_of(tool: str, kind: Kind) -> UndoTerms:
    arguments = {"subject": "input.subject"} if kind.from_input else {"number": "output.number"}
    if kind.compares:
        arguments |= {"value": "captured.value"}
    return UndoTerms(
        tool,
        kind.lane,
        arguments=arguments,
        idempotency=kind.undo,
        key_ttl_ms=kind.key_ttl_ms,
        lease_ms=UNDO_LEASE_MS,
        settle_ms=SETTLE_MS,
        attempts_max=4,
        backoff_ms=200,
        backoff_cap_ms=2_000,
        window_ms=kind.window_ms,
        accepted_ms=ACCEPTED_MS,
        commutes=kind.undo is NATURAL and not kind.verify and not kind.compares,
    )


@dataclass(slots=True)
class Tool:
    """One tool of one workflow's agent."""

    name: str
    kind: Kind
    account: str = ""  # what it declares to touch, and touches
    contract: Contract = field(init=False)
    contract_bytes: bytes = field(init=False)
    capture: Any = None  # only ever handed through: the agent's process reads the register

    def __post_init__(self) -> None:
        if self.kind.irreversible:  # nothing names its lane but its name
            self.name = f"{self.kind.lane}.{self.name}"
        self.contract, self.contract_bytes = _declared(self.name, self.kind, self.account)
        if self.kind.compares:
            self.capture = object()


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
    register: str = ""
    undone: list[Done] = field(default_factory=list)
    replaced_at_ms: int | None = None  # when a late repeat of an older deed wrote its value over this one's

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
        return self.gone_at_ms is None

    @property
    def gone_at_ms(self) -> int | None:
        """Since when nothing is left of it."""
        ends = [done.at_ms for done in self.undone[:1]]
        return min(ends if self.replaced_at_ms is None else [*ends, self.replaced_at_ms], default=None)


class Said(Enum):
    DONE = "done"
    NOTHING = "nothing there"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Written:
    """A value that a register was given."""

    at_ms: int
    value: str


class World:
    """All remotes. A request lands at the moment one of its methods is called."""

    def __init__(self) -> None:
        self.deeds: list[Deed] = []
        self.overwritten: list[str] = []  # newer values of others that an undo wrote over, though it could see them
        self.on_set: Callable[[str], None] = lambda register: None
        self.asked: dict[str, dict[str, object]] = {}  # what an undo was first asked for with, by its key
        self.asked_otherwise: list[str] = []  # keys that came back with other arguments
        self._calls: dict[str, tuple[Deed | None, int]] = {}  # by forward key, since when; None is a kept refusal
        self._undos: dict[str, tuple[Said, int]] = {}  # by undo key, since when
        self._registers: dict[str, Written] = {}
        self.pending: Counter[str] = Counter()  # what was taken and is neither done nor dropped, by forward key
        self.undoing: dict[int, list[str]] = defaultdict(list)  # who asked for undos that were taken, by deed
        self.reached: set[str] = set()  # deliveries that asked a remote anything of an undo
        self._looked: dict[str, int] = {}  # who is about to undo something, and when he looked last

    def call(
        self, tool: Tool, given: dict[str, Any], key: str, attempt: str, now_ms: int, *, refuse: bool
    ) -> Deed | None:
        """Do it. None: refused, nothing was done."""
        kind, subject = tool.kind, str(given["subject"])
        known = self._calls.get(key)
        if kind.call is KEY and known is not None and _remembered(kind, known[1], now_ms):
            return known[0]
        if kind.call is NATURAL:
            there = self._find(tool, subject)
            if there is not None and not there.undone:
                if kind.compares and not refuse:
                    self._set_again(register_of(given), there, now_ms)
                return None if kind.compares and refuse else there
        if refuse:
            if kind.call is KEY and kind.keeps_refusals:
                self._calls[key] = (None, now_ms)
            return None
        names = tuple(given.get("on", ()))
        deed = Deed(len(self.deeds), tool.name, subject, key, attempt, now_ms, str(given.get("account", "")), names)
        self.deeds.append(deed)
        self._calls[key] = (deed, now_ms)
        if kind.compares:
            deed.register = register_of(given)
            self._registers[deed.register] = Written(now_ms, deed.id)
            self.on_set(deed.register)
        return deed

    def undo(self, tool: Tool, arguments: dict[str, object], key: str, by: str, now_ms: int, *, refuse: bool) -> Said:
        """Undo it, as the kind of remote has it."""
        if self.asked.setdefault(key, arguments) != arguments:
            self.asked_otherwise.append(f"{tool.name} was asked under {key} for {arguments}, not {self.asked[key]}")
        kind = tool.kind
        known = self._undos.get(key)
        if kind.undo is KEY and known is not None and _remembered(kind, known[1], now_ms):
            return known[0]
        deed = self.target(tool, arguments)
        if refuse:
            if kind.undo is KEY and kind.keeps_refusals:
                self._undos[key] = (Said.REFUSED, now_ms)
            return Said.REFUSED
        if deed is None or (kind.undo is NATURAL and not deed.is_there):
            return Said.NOTHING
        if kind.compares:
            self._put_back(deed, str(arguments["value"]), by, now_ms)
        deed.undone.append(Done(now_ms, key, by))
        self._undos[key] = (Said.DONE, now_ms)
        return Said.DONE

    def undo_by_hand(self, deed: Deed, by: str, now_ms: int) -> None:
        """A person does what no machine may."""
        deed.undone.append(Done(now_ms, BY_HAND, by))

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

    # --- registers --------------------------------------------------------------------------------------------------

    def read(self, register: str) -> str:
        written = self._registers.get(register)
        return written.value if written is not None else "nothing"

    def look(self, register: str, by: str, now_ms: int) -> str:
        """Read a register before an undo of it."""
        self._looked[by] = now_ms
        return self.read(register)

    def write_other(self, register: str, value: str, now_ms: int) -> None:
        """Somebody else sets a register."""
        self._registers[register] = Written(now_ms, value)

    def _set_again(self, register: str, deed: Deed, now_ms: int) -> None:
        """A repeat of a call sets what it set. What another had set since is there no more, and was not undone: a call
        that sets what others set, too, is declared to do nothing when it is repeated, and that is true of it alone."""
        value = self.read(register)
        over = next((other for other in self.deeds if other is not deed and other.id == value), None)
        if over is not None and over.is_there:
            over.replaced_at_ms = now_ms
        deed.replaced_at_ms = None
        self._registers[register] = Written(now_ms, deed.id)

    def _put_back(self, deed: Deed, value: str, by: str, now_ms: int) -> None:
        there = self._registers[deed.register]
        seen = there.at_ms <= self._looked.get(by, now_ms)
        if there.value not in (deed.id, value) and seen:
            self.overwritten.append(
                f"{by} wrote over {there.value} in {deed.register}, which deed {deed.number} was not"
            )
        self._registers[deed.register] = Written(now_ms, value)

    def _find(self, tool: Tool, subject: str) -> Deed | None:
        found = (d for d in reversed(self.deeds) if d.tool == tool.name and d.subject == subject)
        return next(found, None)


def register_of(given: dict[str, Any]) -> str:
    """Return which register a call sets: its account's, or its own."""
    subject = str(given["subject"])
    return f"{subject.partition('/')[0]}/{given['account']}" if given.get("account") else subject


def _remembered(kind: Kind, first_ms: int, now_ms: int) -> bool:
    return kind.key_ttl_ms is None or now_ms < first_ms + kind.key_ttl_ms
