"""What can be said of a tool, its undo and its probe, and how it becomes terms of the contract."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from amends.schemas.contract import (
    ALLOW,
    COMPARE,
    ECHO,
    PLAIN,
    REFUSE,
    RESULT,
    STRICT,
    CallTerms,
    Contract,
    Effect,
    Idempotency,
    ProbeTerms,
    UndoTerms,
)
from amends.tools.durations import Duration, duration_ms
from amends.tools.errors import ContractError
from amends.tools.handlers import Exceptions
from amends.tools.shape import Shape

IdempotencyName = Literal["key", "natural", "neither"]
RestoresName = Literal["plain", "compare"]
DuplicatesName = Literal["result", "refuse", "allow"]
FenceName = Literal["echo", "strict"]

_NAME = re.compile(r"[^\s\x00-\x1f]{1,200}")
_LANE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
ATTEMPTS_MAX = 1_000
APPROVAL_MS = 24 * 60 * 60 * 1000


class ToolOptions(TypedDict, total=False):
    """Options of the class decorators."""

    idempotency: IdempotencyName  # default: key where a parameter defaults to KEY, else neither
    key_ttl: Duration  # how long the remote remembers keys; default: for ever
    lease: Duration  # how long one send may stay open; default 60s
    settles_in: Duration  # how long after a send ended its effect may still appear; default 5s
    refused_by: Exceptions  # exceptions that mean "did not happen"
    repeatable: bool  # the same call twice is wanted twice
    resources: Sequence[str]  # keys it touches, JMESPath over input
    version: str
    duplicates: DuplicatesName  # an equal call that a model plans again; default: result, of a natural one: allow
    fence: FenceName  # strict: called only once the fold has seen it; an irreversible or approved one always is
    failed_calls_max: int  # of its calls in one workflow that may fail; one more and the workflow is undone
    approval: bool | Duration  # a person approves each call, asked for so long; True is 24h; default: none is asked
    accepted_when: str  # JMESPath over input and output: the remote only took the request (202) and does it later
    done_within: Duration  # how long it may take to do what it took, before a person is asked; default 1h


class UndoOptions(TypedDict, total=False):
    """Options of `.undo`."""

    arguments: Mapping[str, str]  # parameter -> JMESPath over input, output, captured, external_resource_ids
    idempotency: IdempotencyName
    key_ttl: Duration
    window: Duration  # the undo is possible this long after the call started; default: for ever
    residue: str  # what a perfect undo still leaves
    lane: str  # the team with the credentials; default: the tool's name up to the first dot
    lease: Duration  # default 30s
    settles_in: Duration  # default 5s
    attempts: int  # default 5
    backoff: Duration  # doubles with each spent attempt; default 1s
    backoff_cap: Duration  # default 60s
    commutes: bool  # its order with others' changes does not matter
    agent_tool: str  # the tool with which an agent undoes the same by itself
    covers: Sequence[str]  # tools whose later steps this undo undoes too, where they name what the call made
    restores: RestoresName  # compare: only if the world still shows what the call wrote, else a person is asked
    refused_by: Exceptions  # the undo had no effect; a later attempt may
    refused_for_good_by: Exceptions  # the undo had no effect and never will
    done_within: Duration  # how long a remote that answered `Accepted` may take; default 1h
    undos_max: int  # undos of this tool under way at once, over all workflows; default: as the processor is told
    undos_per_minute: int  # undos of this tool that begin in a minute, over all workflows; default: no limit
    breaker_failures: int  # workflows in a row whose undos failed, until the tool is left alone for a while; 0: never


class ProbeOptions(TypedDict, total=False):
    """Options of `.probe`."""

    settles_in: Duration  # of the call: before that, "absent" proves nothing
    lease: Duration
    attempts: int
    backoff: Duration
    backoff_cap: Duration


class CaptureOptions(TypedDict, total=False):
    """Options of `.capture`."""

    writes: str  # JMESPath over input, captured, output: what it reads after the call. Default: it is read again


def is_lane(name: str) -> bool:
    """Tell whether a lane may be called so: it is part of a topic's name."""
    return _LANE.fullmatch(name) is not None


def contract_of(effect: Effect, name: str, shape: Shape, given: ToolOptions) -> Contract:
    """Return the contract as far as the decorator says it."""
    where = f"{shape.location}: {name!r}"
    _known(where, given, ToolOptions)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ContractError(f"{where} is no tool name: 1 to 200 characters without spaces, such as payments.charge.")
    idempotency = _idempotency(where, given, takes_key=shape.key_name is not None)
    if idempotency is Idempotency.KEY and shape.key_name is None:
        raise ContractError(
            f'{where}: idempotency="key", but the tool takes no key. Give it a parameter `idempotency_key: str = KEY` '
            "and pass it to the remote."
        )
    defaults = CallTerms()
    call = CallTerms(
        idempotency=idempotency,
        key_ttl_ms=_duration(where, given, "key_ttl", None),
        lease_ms=_duration(where, given, "lease", defaults.lease_ms),
        settle_ms=_duration(where, given, "settles_in", defaults.settle_ms),
        accepted_ms=_duration(where, given, "done_within", defaults.accepted_ms),
    )
    _exceptions(where, "refused_by", given.get("refused_by", ()))
    _plain(where, given, {"version": str, "repeatable": bool, "accepted_when": str})
    approval_ms = _approval(where, given, effect)
    failed_calls_max: object = given.get("failed_calls_max")
    if failed_calls_max is not None and (type(failed_calls_max) is not int or failed_calls_max < 0):
        raise ContractError(f"{where}: failed_calls_max={failed_calls_max!r} is no count: give 0 or more, or none.")
    return Contract(
        tool_name=name,
        effect=effect,
        tool_version=given.get("version", ""),
        call=call,
        resources=_resources(where, given),
        repeatable=given.get("repeatable", False),
        duplicates=_duplicates(where, given, idempotency),
        fence=_fence(where, given, strict=effect is Effect.IRREVERSIBLE or approval_ms is not None),
        approval_ms=approval_ms,
        failed_calls_max=failed_calls_max,
        accepted_when=given.get("accepted_when", ""),
    )


def undo_terms_of(tool_name: str, shape: Shape, given: UndoOptions) -> UndoTerms:
    """Return the terms of an undo."""
    where = f"{shape.location}: the undo of {tool_name!r}"
    _known(where, given, UndoOptions)
    _plain(where, given, {"lane": str, "residue": str, "commutes": bool})
    lane = given.get("lane") or tool_name.partition(".")[0]
    if not is_lane(lane):
        raise ContractError(
            f"{where} has no lane {lane!r}: it is part of a topic's name. Give lane=... of letters, digits, . _ or -"
        )
    for name in ("refused_by", "refused_for_good_by"):
        _exceptions(where, name, given.get(name, ()))
    covers = _tool_names(where, "covers", given.get("covers", ()))
    agent_tool = _tool_names(where, "agent_tool", given.get("agent_tool") or ())
    return UndoTerms(
        handler=tool_name,
        lane=lane,
        arguments=_arguments(where, given),
        idempotency=_idempotency(where, given, takes_key=shape.key_name is not None),
        key_ttl_ms=_duration(where, given, "key_ttl", None),
        lease_ms=_duration(where, given, "lease", 30_000),
        settle_ms=_duration(where, given, "settles_in", 5_000),
        attempts_max=_attempts(where, given),
        backoff_ms=_duration(where, given, "backoff", 1_000),
        backoff_cap_ms=_duration(where, given, "backoff_cap", 60_000),
        window_ms=_duration(where, given, "window", None),
        residue=given.get("residue", ""),
        commutes=given.get("commutes", False),
        agent_tool=agent_tool[0] if agent_tool else "",
        covers=covers,
        accepted_ms=_duration(where, given, "done_within", 3_600_000),
        undos_max=_count(where, given, "undos_max", 1),
        undos_per_minute=_count(where, given, "undos_per_minute", 1),
        breaker_failures=_count(where, given, "breaker_failures", 0),
    )


def _count(where: str, given: Mapping[str, Any], option: str, least: int) -> int | None:
    count: object = given.get(option)
    if count is not None and (type(count) is not int or count < least):
        raise ContractError(f"{where}: {option}={count!r} is no count: give {least} or more, or none.")
    return count


def _tool_names(where: str, option: str, given: object) -> tuple[str, ...]:
    names: list[object] = list(given) if isinstance(given, list | tuple) else [given]
    for name in names:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ContractError(f"{where}: {option} has {name!r}, which is no tool name, such as payments.refund.")
    return tuple(str(name) for name in names)


def probe_terms_of(tool_name: str, shape: Shape, given: ProbeOptions) -> tuple[ProbeTerms, int | None]:
    """Return the terms of a probe, and the call's settle time in milliseconds if it says one."""
    where = f"{shape.location}: the probe of {tool_name!r}"
    _known(where, given, ProbeOptions)
    terms = ProbeTerms(
        handler=tool_name,
        lease_ms=_duration(where, given, "lease", 30_000),
        attempts_max=_attempts(where, given),
        backoff_ms=_duration(where, given, "backoff", 1_000),
        backoff_cap_ms=_duration(where, given, "backoff_cap", 60_000),
    )
    return terms, _duration(where, given, "settles_in", None)


def restores_of(tool_name: str, shape: Shape, given: UndoOptions) -> str:
    """Return how the undo treats what it finds: plain or compare."""
    value: object = given.get("restores", PLAIN)
    if value not in (PLAIN, COMPARE):
        raise ContractError(
            f'{shape.location}: the undo of {tool_name!r}: restores={value!r} is none of "plain", "compare".'
        )
    return str(value)


def writes_of(tool_name: str, shape: Shape, given: CaptureOptions) -> str:
    """Return what the capture will read once the call has happened, as JMESPath; "" where it has to be read again."""
    where = f"{shape.location}: the capture of {tool_name!r}"
    _known(where, given, CaptureOptions)
    value: object = given.get("writes", "")
    if not isinstance(value, str):
        raise ContractError(f'{where}: writes={value!r} is no text: give a JMESPath, such as "input.address".')
    return value


def _arguments(where: str, given: UndoOptions) -> dict[str, str]:
    arguments: object = given.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise ContractError(f'{where}: arguments is a mapping, such as arguments={{"charge": "output.id"}}.')
    for name in cast("Mapping[object, object]", arguments):
        if not isinstance(name, str):
            raise ContractError(f"{where}: arguments names the parameter {name!r}, which is no text.")
    return dict(cast("Mapping[str, str]", arguments))


def _resources(where: str, given: ToolOptions) -> tuple[str, ...]:
    resources: object = given.get("resources", ())
    texts = not isinstance(resources, str) and isinstance(resources, Sequence)
    if not texts or not all(isinstance(entry, str) for entry in cast("Sequence[object]", resources)):
        raise ContractError(f'{where}: resources is a list of texts, such as resources=["input.account"].')
    return tuple(cast("Sequence[str]", resources))


def _plain(where: str, given: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if name in given and type(given[name]) is not kind:
            wanted = "True or False" if kind is bool else "a text"
            raise ContractError(f"{where}: {name}={given[name]!r} is not {wanted}.")


def _known(where: str, given: Mapping[str, Any], options: type) -> None:
    known = options.__annotations__
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise ContractError(f"{where} has no option {name!r}; {hint}")


def _duration(where: str, given: Mapping[str, Any], name: str, default: Any) -> Any:
    value = given.get(name)
    if value is None:
        return default
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ContractError(f"{where}: {name}: {error}.") from error


def _idempotency(where: str, given: Mapping[str, Any], *, takes_key: bool) -> Idempotency:
    value = given.get("idempotency")
    if value is None:
        return Idempotency.KEY if takes_key else Idempotency.NEITHER
    if value not in ("key", "natural", "neither"):
        raise ContractError(f'{where}: idempotency={value!r} is none of "key", "natural", "neither".')
    return Idempotency(value)


def _duplicates(where: str, given: ToolOptions, idempotency: Idempotency) -> str:
    """A call that a remote takes twice for one may be made again, for what it set may have been changed since."""
    value: object = given.get("duplicates")
    if value is None:
        return ALLOW if idempotency is Idempotency.NATURAL else RESULT
    if value not in (RESULT, REFUSE, ALLOW):
        raise ContractError(f'{where}: duplicates={value!r} is none of "result", "refuse", "allow".')
    if given.get("repeatable") and value != ALLOW:
        raise ContractError(f"{where}: repeatable=True makes every call a new one, duplicates={value!r} does not.")
    return str(value)


def _fence(where: str, given: ToolOptions, *, strict: bool) -> str:
    value: object = given.get("fence", STRICT if strict else ECHO)
    if value not in (ECHO, STRICT):
        raise ContractError(f'{where}: fence={value!r} is none of "echo", "strict".')
    if strict and value != STRICT:
        raise ContractError(f'{where}: fence="echo", but what can\'t be undone or was approved is fenced strictly.')
    return str(value)


def _approval(where: str, given: ToolOptions, effect: Effect) -> int | None:
    value = given.get("approval", False)
    if value is False:
        return None
    if effect is Effect.NONE:
        raise ContractError(f"{where}: approval={value!r} of a tool that changes nothing: leave it out.")
    return APPROVAL_MS if value is True else int(_duration(where, given, "approval", None))


def _attempts(where: str, given: Mapping[str, Any]) -> int:
    value = given.get("attempts", 5)
    if type(value) is not int or not 1 <= value <= ATTEMPTS_MAX:
        raise ContractError(f"{where}: attempts={value!r} is no whole number from 1 to {ATTEMPTS_MAX}.")
    return value


def _exceptions(where: str, name: str, kinds: Any) -> None:
    if not isinstance(kinds, tuple):
        raise ContractError(f"{where}: {name} is a tuple, such as {name}=(stripe.CardError,).")
    for kind in kinds:
        named = isinstance(kind, str) and "." in kind
        if not named and not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ContractError(f"{where}: {name} has {kind!r}, which is no exception class (nor its full name).")
        if isinstance(kind, type) and kind in (Exception, TimeoutError):
            raise ContractError(f"{where}: {name} has {kind.__name__}, which does not prove that nothing happened.")
