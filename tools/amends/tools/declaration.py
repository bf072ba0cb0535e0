"""A tool as it was declared: its callable, its handlers, and the contract made of them.

A declaration is open until its contract is first asked for (by a call in a workflow, or by a registry); then it is
sealed: checked as a whole, encoded once, and handlers can't be added any more. `checks` holds the rules.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amends.schemas.codec import encode
from amends.schemas.contract import DECLARED, PLAIN, Contract, Effect, Idempotency, ProbeTerms, UndoTerms, VerifyTerms
from amends.schemas.payload import SecretDigest, canonical, contains_not_kept, snapshot
from amends.tools import checks
from amends.tools.errors import CannotResend, ContractError
from amends.tools.handlers import Exceptions, Handler, is_one_of, qualified_name
from amends.tools.resolve import MISSING, WHOLE_STEP, Missing, Resolved, Unresolved, resolve
from amends.tools.runner import NO_OPTIONS, BoundCall, CallOptions, fresh_key, runner_for
from amends.tools.secrecy import revealed, texts_of
from amends.tools.shape import AnyCallable, Shape

_SECRET_ROUNDS = 10_000  # about 3 ms: a recorded digest must not be a way to try a dictionary of passwords
NO_RESEND = "no_resend"
"""Contract attribute: why the recorded input is not enough to make the call again."""


@dataclass(eq=False, repr=False, slots=True)
class Tool:
    """A declared tool. Users meet it through its function; producers, workers and checks through this."""

    shape: Shape
    terms: Contract  # as the decorator said, before its handlers
    refused_by: Exceptions = ()
    wrapper: AnyCallable | None = None  # what stands in the module in the function's place
    undo: Handler | None = None
    probe: Handler | None = None
    verify: Handler | None = None
    capture: Handler | None = None
    _restores: str = PLAIN
    _writes: str = ""
    _undo_terms: UndoTerms | None = None
    _probe_terms: ProbeTerms | None = None
    _settle_ms: int | None = None
    _contract: Contract | None = None
    _contract_bytes: bytes = b""
    _defaults: dict[str, Any] | None = None  # by parameter, where each can be given by its place or by its name
    signature: inspect.Signature = field(init=False)
    """What a model sees: without `self` and the key's parameter."""

    def __post_init__(self) -> None:
        self.signature = inspect.Signature(list(self.shape.recorded.values()))
        parameters = self.shape.recorded.values()
        if all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
            self._defaults = {p.name: p.default for p in parameters}

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.effect}) at {self.location}>"

    @property
    def name(self) -> str:
        return self.terms.tool_name

    @property
    def effect(self) -> Effect:
        """As declared; the contract's is `unclassified` where a compensable or reversible tool has no undo."""
        return self.terms.effect

    @property
    def asynchronous(self) -> bool:
        return self.shape.asynchronous

    @property
    def location(self) -> str:
        return self.shape.location

    @property
    def module(self) -> str:
        return str(getattr(self.wrapper, "__module__", ""))

    @property
    def qualname(self) -> str:
        return str(getattr(self.wrapper, "__qualname__", ""))

    # --- contract ---------------------------------------------------------------------------------------------------

    @property
    def contract(self) -> Contract:
        """The contract, checked and sealed on first use.

        Raises:
            ContractError: the declaration as a whole can't be kept.
        """
        if self._contract is None:
            self._seal()
        assert self._contract is not None
        return self._contract

    @property
    def contract_bytes(self) -> bytes:
        """The contract as it travels in STARTED; encoded once."""
        if self._contract is None:
            self._seal()
        return self._contract_bytes

    def _seal(self) -> None:
        contract = self._assembled()
        checks.check_whole(self, contract)
        self._contract_bytes = encode(contract)
        self._contract = contract

    def _assembled(self) -> Contract:
        lacks_undo = self.undo is None and self.effect in (Effect.REVERSIBLE, Effect.COMPENSABLE)
        attributes = dict(self.terms.attributes)
        if lacks_undo:
            attributes[DECLARED] = self.effect.value
        if self.undo is not None and self.undo.needs_step:
            attributes[WHOLE_STEP] = "yes"
        if self.shape.secrets:
            attributes[NO_RESEND] = "an argument is secret"
        elif self.shape.self_name is not None:
            attributes[NO_RESEND] = "a method: the object it is bound to is not recorded"
        call = self.terms.call
        return replace(
            self.terms,
            effect=Effect.UNCLASSIFIED if lacks_undo else self.effect,
            call=call if self._settle_ms is None else replace(call, settle_ms=self._settle_ms),
            undo=self._undo_terms,
            probe=self._probe_terms,
            verify=VerifyTerms(handler=self.name) if self.verify is not None else None,
            refused_by=tuple(kind if isinstance(kind, str) else qualified_name(kind) for kind in self.refused_by),
            captures=self.capture is not None,
            restores=self._restores,
            writes=self._writes,
            attributes=attributes,
        )

    def problems(self) -> list[str]:
        """Return what is allowed but leaves work to people, in words. For `amends check`."""
        return checks.problems(self)

    def add_undo(self, handler: Handler, terms: UndoTerms, restores: str = PLAIN) -> None:
        self._add(handler, self.undo)
        optional = tuple(sorted(set(terms.arguments) - handler.shape.required))
        terms = replace(terms, optional_arguments=optional)
        checks.check_undo(self, handler, terms)
        self.undo, self._undo_terms, self._restores = handler, terms, restores

    def add_probe(self, handler: Handler, terms: ProbeTerms, settle_ms: int | None) -> None:
        self._add(handler, self.probe)
        checks.check_probe(self, handler)
        self.probe, self._probe_terms, self._settle_ms = handler, terms, settle_ms

    def add_verify(self, handler: Handler) -> None:
        self._add(handler, self.verify)
        self.verify = handler

    def add_capture(self, handler: Handler, writes: str) -> None:
        self._add(handler, self.capture)
        checks.check_capture(self, handler, writes)
        self.capture, self._writes = handler, writes

    def _add(self, handler: Handler, before: Handler | None) -> None:
        checks.check_takes_handlers(self, handler)
        if before is not None:
            raise ContractError(
                f"{handler.location}: {self.name} has its {handler.role} at {before.location}; leave one of them."
            )
        if self._contract is not None:
            raise ContractError(
                f"{handler.location}: the {handler.role} of {self.name} is declared after the tool's first use. Put it "
                f"below the tool, at {self.location}."
            )

    # --- calls ------------------------------------------------------------------------------------------------------

    def run(self, arguments: tuple[Any, ...], keywords: dict[str, Any], options: CallOptions = NO_OPTIONS) -> Any:
        """Make a call of a plain function, through the active runner."""
        bound = self.bind(arguments, keywords, options)
        runner = runner_for(self)
        return bound.invoke(fresh_key()) if runner is None else runner.call(bound)

    async def run_async(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], options: CallOptions = NO_OPTIONS
    ) -> Any:
        """Make a call of a coroutine function, through the active runner."""
        bound = self.bind(arguments, keywords, options)
        runner = runner_for(self)
        return await (bound.invoke(fresh_key()) if runner is None else runner.call_async(bound))

    def bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any], options: CallOptions) -> BoundCall:
        """Return the call with its recorded arguments.

        Raises:
            TypeError: the arguments are not the function's, as if it had been called itself.
        """
        key_name, function = self.shape.key_name, self.shape.function
        if key_name is not None and key_name in keywords:
            raise TypeError(
                f"{self.name}: {key_name!r} is filled in by amends, so that every try has the same. To say that two "
                'calls are one, or are not, give .options(call_id="...").'
            )
        own = arguments[:1] if self.shape.self_name is not None else ()
        given = self._plainly_bound(arguments[len(own) :], keywords)
        if given is not None:
            positional, named = tuple(given.values()), dict[str, Any]()
        else:
            bound = self.signature.bind(*arguments[len(own) :], **keywords)
            bound.apply_defaults()
            given, positional, named = bound.arguments, bound.args, bound.kwargs

        def invoke(key: str) -> Any:
            filled = named if key_name is None else {**named, key_name: key}
            return function(*own, *positional, **filled)

        if not self.shape.secrets:
            return BoundCall(self, {n: snapshot(value) for n, value in given.items()}, options, invoke)
        hidden = {name: given[name] for name in self.shape.secrets}
        shown = {name: self._secret(name, hidden[name]) if name in hidden else v for name, v in given.items()}
        recorded = {name: snapshot(value) for name, value in shown.items()}  # the body may change what it was given
        texts = {text for value in hidden.values() for text in texts_of(value)}
        return BoundCall(self, recorded, options, invoke, tuple(sorted(texts, key=len, reverse=True)))

    def _plainly_bound(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any] | None:
        """Return what `inspect` would bind, in the order of the parameters, None where it has to: it takes three times
        as long. No parameter is `*args`, keyword only and the like, and each is given, or has its default."""
        defaults = self._defaults
        if defaults is None or len(arguments) > len(defaults):
            return None
        given = dict(zip(defaults, arguments, strict=False))
        if keywords:
            if not keywords.keys() <= defaults.keys() or not given.keys().isdisjoint(keywords):
                return None
            given = {name: given[name] if name in given else keywords.get(name, of) for name, of in defaults.items()}
        elif len(given) < len(defaults):
            given = {**defaults, **given}
        missing = inspect.Parameter.empty
        return None if any(value is missing for value in given.values()) else given

    def _secret(self, name: str, value: object) -> Any:
        if value is None:
            return None
        salt = f"amends\n{self.name}\n{name}".encode()
        return SecretDigest(hashlib.pbkdf2_hmac("sha256", canonical(revealed(value)), salt, _SECRET_ROUNDS).hex())

    def refuses(self, error: BaseException) -> bool:
        """Tell whether `error` is a declared refusal: the call did not happen."""
        return is_one_of(error, self.refused_by)

    def resolve(
        self,
        input: object,
        output: object | Missing = MISSING,
        captured: object = None,
        external_resource_ids: Mapping[str, str] | None = None,
    ) -> Resolved | Unresolved:
        """Return the undo's arguments, checked against the handler's types, or why they can't be known."""
        found = resolve(
            self.contract, input=input, output=output, captured=captured, external_resource_ids=external_resource_ids
        )
        return checks.fitting(self, found) if isinstance(found, Resolved) else found

    def call_again(self, arguments: Mapping[str, Any], key: str) -> Any:
        """Make the call again from its recorded input, with the same key. Returns an awaitable if `asynchronous`.

        Raises:
            CannotResend: the record is not enough; nothing was called.
            ArgumentsDoNotFit: the record is of another version of the tool; nothing was called.
        """
        why = self.contract.attributes.get(NO_RESEND)
        if why is not None or contains_not_kept(dict(arguments)):
            raise CannotResend(f"{self.name} can't be sent again: {why or 'a part of its input was not kept'}.")
        if self.contract.call.idempotency is Idempotency.NEITHER:
            raise CannotResend(f"{self.name} can't be sent again: its remote would do it twice.")
        return checks.fitting_call(self, arguments, key)
