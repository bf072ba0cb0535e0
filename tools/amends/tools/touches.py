"""What a call touches: the keys its tool declares as `resources`, JMESPath over its input.

    @compensable("stock.reserve", resources=["input.sku"])

A key is any single value, small numbers and plain words too: whoever declares it knows what it is. A list is one key
per item. A key that can't be found in the input is `UNKNOWN_ID`: the call may have touched anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jmespath.exceptions import JMESPathError

from amends.schemas.contract import Contract
from amends.schemas.data_flow import UNKNOWN_ID, bounded, id_digest
from amends.schemas.payload import canonical, contains_not_kept, decoded_form
from amends.tools.resolve import compile_expression


def touches_of(contract: Contract, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests of the keys that a call with these arguments touches, none if its tool declares none."""
    if not contract.resources:
        return ()
    root = {"input": decoded_form(dict(arguments))}
    return bounded(found for text in contract.resources for found in _keys(text, root))


def _keys(text: str, root: Mapping[str, Any]) -> Iterator[str]:
    try:
        value = compile_expression(text).search(root)
    except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError):
        value = None
    found: list[Any] = value if isinstance(value, list) else [value]
    for item in found or [None]:
        known = item is not None and not contains_not_kept(item)
        yield id_digest(canonical(item).decode()) if known else UNKNOWN_ID
