"""Writers of JSON that are made once: the standard library makes its encoder anew for each text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def json_writer(*, sort_keys: bool = False, ascii_only: bool = True) -> Callable[[Any], str]:
    """Return what writes values of JSON's types as `json.dumps` does without white space, in less time for short ones.

    `JSONEncoder.encode` sets the encoder in C up for each text, which takes longer than a row of state does. Values
    that contain themselves raise RecursionError.
    """
    plain = json.JSONEncoder(separators=(",", ":"), ensure_ascii=ascii_only, check_circular=False, sort_keys=sort_keys)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    escaped = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    chunks = make(None, plain.default, escaped, None, ":", ",", sort_keys, False, True)
    return lambda value: "".join(chunks(value, 0))
