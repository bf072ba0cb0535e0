"""The rules of a declaration. Each broken one is a ContractError that names the line and what to change."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jmespath.exceptions import JMESPathError

from amends.schemas.contract import COMPARE, Contract, Effect, Idempotency, UndoTerms, lane_of
from amends.tools.errors import ArgumentsDoNotFit, CannotResend, ContractError
from amends.tools.foresight import never_fits, wrong_function_of
from amends.tools.handlers import Handler, Role
from amends.tools.options import is_lane
from amends.tools.resolve import ROOTS, Resolved, Unresolved, needs_outcome_for, reads_of

if TYPE_CHECKING:
    from amends.tools.declaration import Tool

UNDOABLE = (Effect.REVERSIBLE, Effect.COMPENSABLE)


def check_takes_handlers(tool: Tool, handler: Handler) -> None:
    """An undo, verify or capture belongs to a tool that can be undone, a probe to one that changes the world."""
    if tool.effect is Effect.NONE or (handler.role is not Role.PROBE and tool.effect not in UNDOABLE):
        raise ContractError(
            f"{handler.location}: {tool.name} is declared {tool.effect} at {tool.location}, which takes no "
            f"{handler.role}. Declare it compensable or reversible, or remove the {handler.role}."
        )
    if handler.shape.self_name is not None:
        raise ContractError(
            f"{handler.location}: a handler runs in another process, where there is no {handler.shape.self_name!r}. "
            "Make it a function or a static method that gets what it needs from its arguments."
        )
    own = getattr(handler.shape.function, "tool", None)
    if own is not None and own.effect is not Effect.NONE:
        raise ContractError(
            f"{handler.location}: the {handler.role} of {tool.name} is itself the tool {own.name}, which refuses to "
            f"run outside a workflow. Put the decorator of the {handler.role} below that tool's, next to the function."
        )


def check_undo(tool: Tool, handler: Handler, terms: UndoTerms) -> None:
    shape, known = handler.shape, handler.shape.recorded
    for name, text in terms.arguments.items():
        if name not in known and not shape.takes_any_keyword:
            raise ContractError(f"{handler.location}: the undo has no parameter {name!r}{_nearest(name, known)}.")
        _check_expression(tool, handler, name, text)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    positional = [n for n, p in known.items() if p.kind in by_place and (n in terms.arguments or n in shape.required)]
    if positional:
        raise ContractError(f"{handler.location}: {positional[0]!r} is positional only; handlers are called by name.")
    missing = sorted(shape.required - set(terms.arguments))
    if missing:
        raise ContractError(
            f"{handler.location}: nothing says where {', '.join(map(repr, missing))} comes from. Add it to the undo's "
            f'arguments, such as arguments={{"{missing[0]}": "output.{missing[0]}"}}, or take the whole `step: Step`.'
        )
    if terms.idempotency is Idempotency.KEY and not (handler.takes_key or handler.needs_step):
        raise ContractError(
            f'{handler.location}: idempotency="key", but the undo takes no key. Give it a parameter '
            "`idempotency_key: str = KEY` and pass it to the remote."
        )


def _check_expression(tool: Tool, handler: Handler, name: str, text: str) -> None:
    where = f"{handler.location}: {name} = {text!r}"
    if not isinstance(text, str):
        raise ContractError(f'{where} is no text: arguments map a parameter to a JMESPath, such as "output.id".')
    try:
        paths = reads_of(text)
    except JMESPathError as error:
        raise ContractError(f"{where} is no JMESPath: {str(error).splitlines()[0]}") from error
    wrong = wrong_function_of(text)
    if wrong is not None:
        raise ContractError(f"{where}: {wrong}.")
    for path in paths:
        if not path or path[0] not in ROOTS:
            raise ContractError(f"{where} must start from one of {', '.join(ROOTS)}.")
        if path[0] == "captured" and handler.role is not Role.CAPTURE and tool.capture is None:
            raise ContractError(
                f"{where} reads `captured`, but {tool.name} captures nothing. Declare its `.capture` above the undo."
            )
        if path[0] == "input":
            _check_input(tool, where, path[1:])
    never = never_fits(tool.shape, handler.shape, name, text)
    if never is not None:
        raise ContractError(f"{where}: {never}.")


def check_capture(tool: Tool, handler: Handler, writes: str) -> None:
    """A capture is run where the call is made, before there is a step, and by a compensator: from the input alone."""
    shape, known = handler.shape, tool.shape.recorded
    if handler.needs_step or handler.takes_key:
        raise ContractError(
            f"{handler.location}: a capture reads before the call, when there is no step and no key yet. Have it take "
            f"the arguments of {tool.name} that it needs: {', '.join(known) or 'there are none'}."
        )
    if tool.shape.asynchronous < shape.asynchronous:
        raise ContractError(
            f"{handler.location}: {tool.name} is a plain function, so its capture runs in a plain thread. Make the "
            "capture a plain function too, or the tool a coroutine function."
        )
    for name, parameter in shape.recorded.items():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ContractError(f"{handler.location}: {name!r} is positional only; handlers are called by name.")
        if name in tool.shape.secrets:
            raise ContractError(
                f"{handler.location}: {name!r} is a secret, which is recorded as a digest, so the capture could not "
                "be repeated. Have it get the secret from where the worker keeps its own."
            )
        if name in shape.required and name not in known:
            raise ContractError(f"{handler.location}: {tool.name} has no argument {name!r}{_nearest(name, known)}.")
    if writes:
        _check_expression(tool, handler, "writes", writes)


def _check_accepted_when(tool: Tool, text: str) -> None:
    where = f"{tool.location}: accepted_when = {text!r}"
    try:
        paths = reads_of(text)
    except JMESPathError as error:
        raise ContractError(f"{where} is no JMESPath: {str(error).splitlines()[0]}") from error
    wrong = wrong_function_of(text)
    if wrong is not None:
        raise ContractError(f"{where}: {wrong}.")
    for path in paths:
        if not path or path[0] not in ("input", "output"):
            raise ContractError(f"{where} must start from input or output, such as \"output.status == 'pending'\".")
        if path[0] == "input":
            _check_input(tool, where, path[1:])


def _check_input(tool: Tool, where: str, path: tuple[str, ...]) -> None:
    secrets, known = tool.shape.secrets, tool.shape.recorded
    if path and path[0] not in known:
        raise ContractError(f"{where}: {tool.name} has no argument {path[0]!r}{_nearest(path[0], known)}.")
    if secrets and (not path or path[0] in secrets):
        raise ContractError(
            f"{where} reads a secret ({', '.join(sorted(secrets))}), which is recorded as a digest. Have the undo get "
            "it from where the worker keeps its secrets, and pass an id of it."
        )


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}" if near else f"; it has {', '.join(known) or 'none'}"


def check_probe(tool: Tool, handler: Handler) -> None:
    if handler.shape.required:
        required = sorted(handler.shape.required)
        names = ", ".join(f"{name!r} without its type" if name == "step" else repr(name) for name in required)
        raise ContractError(
            f"{handler.location}: a probe gets the whole `step: Step` (and the call's key, by `KEY`), not {names}: "
            "where the outcome is unknown, only the step is there."
        )


def check_whole(tool: Tool, contract: Contract) -> None:
    """Rules between handlers, once all are declared."""
    undo, verify = contract.undo, tool.verify
    if contract.accepted_when:
        _check_accepted_when(tool, contract.accepted_when)
    if tool.probe is not None and not is_lane(lane_of(contract)):
        raise ContractError(
            f"{tool.probe.location}: the probe of {tool.name} comes by the lane {lane_of(contract)!r}, which is to be "
            "part of a topic's name. Have the tool's name begin with letters, digits, _ or - up to its first dot."
        )
    if verify is not None:
        if undo is None:
            raise ContractError(
                f"{verify.location}: {tool.name} has a verify but no undo; verify tells whether an undo took. Add "
                "`.undo`, or use `.probe` to ask whether the call happened."
            )
        missing = sorted(verify.shape.required - (set(undo.arguments) - set(undo.optional_arguments)))
        if missing:
            raise ContractError(
                f"{verify.location}: the verify is given the undo's arguments ({', '.join(undo.arguments) or 'none'}), "
                f"and {', '.join(map(repr, missing))} is none of those that are always there. Name it in the undo's "
                "arguments, or take `step: Step`."
            )
    where = tool.undo.location if tool.undo is not None else tool.location
    compares = contract.restores == COMPARE
    if compares and tool.capture is None:
        raise ContractError(
            f'{where}: restores="compare" compares what is there with what was there before and after the call, and '
            f"nothing reads that. Add a `.capture` to {tool.name}."
        )
    if tool.capture is not None and contract.writes and not compares:
        raise ContractError(
            f"{tool.capture.location}: writes=... says what is there after the call, and only an undo that compares "
            f'asks for it. Say restores="compare" in the undo of {tool.name}, or leave it out.'
        )
    if undo is None or undo.idempotency is not Idempotency.NATURAL or undo.commutes:
        return
    if verify is None and not compares:
        raise ContractError(
            f'{where}: an undo with idempotency="natural" may run late, over what somebody else wrote since. Add a '
            f'`.verify` to {tool.name}, say restores="compare" if it puts back what a `.capture` read, or '
            "commutes=True if its order with others' changes does not matter."
        )


def problems(tool: Tool) -> list[str]:
    """Return what is allowed and leaves work to people."""
    contract, found = tool.contract, []
    if tool.effect in UNDOABLE and contract.undo is None:
        found.append(f"{tool.name} is declared {tool.effect} and has no undo: it counts as unclassified")
    if tool.effect is Effect.UNCLASSIFIED:
        found.append(f"{tool.name} is unclassified: a policy decides what happens when its workflow fails")
    if tool.effect is Effect.IRREVERSIBLE:
        found.append(f"{tool.name} can't be undone: a person is asked when its workflow fails")
    if contract.undo is not None:
        found.extend(_doubts(tool.name, contract, contract.undo))
    return found


def _doubts(name: str, contract: Contract, undo: UndoTerms) -> Iterator[str]:
    """Where a crash leaves a doubt that no machine can clear up."""
    compares = contract.restores == COMPARE
    if contract.verify is None and not compares and undo.idempotency is Idempotency.NEITHER:
        yield f"the undo of {name} takes no key and has no verify: a crash inside it needs a person"
    if compares:
        if not contract.writes or needs_outcome_for(contract.writes):
            yield (
                f"the capture of {name} does not say what the call writes: a crash inside the call, after its effect, "
                "needs a person"
            )
    elif contract.probe is None and contract.call.idempotency is Idempotency.NEITHER:
        yield f"{name} takes no key and has no probe: a call of unknown outcome needs a person"


def fitting(tool: Tool, found: Resolved) -> Resolved | Unresolved:
    """Return `found` if its values fit the undo's types, else why not."""
    assert tool.undo is not None, "arguments were resolved for an undo"
    try:
        tool.undo.shape.fit(found.arguments)
    except ArgumentsDoNotFit as error:
        return Unresolved(error.message)
    return found


def fitting_call(tool: Tool, recorded: Mapping[str, Any], key: str) -> Any:
    """Call the tool's function with its recorded input."""
    shape, positional, keywords = tool.shape, list[Any](), dict[str, Any]()
    unknown = sorted(set(recorded) - set(shape.recorded))
    if unknown or shape.required - set(recorded):
        raise CannotResend(f"{tool.location}: the record is of another version of {tool.name}, with other parameters.")
    variable = {
        n
        for n, p in shape.recorded.items()
        if p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }
    fitted = {**recorded, **shape.fit({n: v for n, v in recorded.items() if n not in variable})}
    for name, parameter in shape.recorded.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(fitted.get(name, ()))
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keywords.update(fitted.get(name, {}))
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[name] = fitted.get(name, parameter.default)
        else:
            positional.append(fitted.get(name, parameter.default))
    if shape.key_name is not None:
        keywords[shape.key_name] = key
    return shape.function(*positional, **keywords)
