"""Secrets: which settings are, and those that stand in files of their own, as Docker and Kubernetes hand them out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from amends.kafka.errors import SettingsWrong

ENDING = "_file"
SECRET_BYTES_MAX = 65_536

_SECRET = re.compile(
    r"pass(word|phrase)|secret|[._]pem$|token(?![._]endpoint)|credential|jaas|assertion[._]private|oauthbearer[._]config",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether an option or setting of that name must never be shown."""
    return bool(_SECRET.search(name))


def is_named_by_file(model: type[BaseModel], name: str) -> bool:
    """Return whether a setting names the file that a secret stands in, such as `sasl_password_file`."""
    spelt = name.replace(".", "_")
    if not spelt.endswith(ENDING) or spelt in model.model_fields:
        return False
    base = spelt.removesuffix(ENDING)
    field = model.model_fields.get(base)
    return is_secret(base) or (field is not None and "Secret" in str(field.annotation))


def from_files(
    model: type[BaseModel],
    given: Mapping[str, Any],
    value_of: Callable[[str, str], Any],
    spelt: Callable[[str], str],
) -> dict[str, Any]:
    """Return `given` with the secrets that stand in files read. A line's end behind a secret is not part of it.

    Args:
        value_of: makes of a setting's name and text what the model wants.
        spelt: says how a person wrote a setting's name.

    Raises:
        SettingsWrong: a file can't be read or is empty, or the secret is given in both ways. No secret is shown.
    """
    read: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, value in given.items():
        if is_named_by_file(model, name):
            read[name.replace(".", "_").removesuffix(ENDING)] = (name, value)
        else:
            plain[name] = value
    for base, (name, path) in read.items():
        if any(known.replace(".", "_") == base for known in plain):
            raise SettingsWrong(f"{spelt(base)} is given twice: by itself and by {spelt(name)}; leave one out")
        plain[base] = value_of(base, _secret_in(str(path), spelt(name)))
    return plain


def _secret_in(path: str, setting: str) -> str:
    try:
        with Path(path).open("rb") as file:
            text = file.read(SECRET_BYTES_MAX + 1).decode()
    except UnicodeDecodeError:
        raise SettingsWrong(f"{setting}: the file {path} is no text") from None
    except OSError as error:
        raise SettingsWrong(f"{setting}: the file {path} can't be read: {error.strerror}") from None
    secret = text.rstrip("\r\n")
    if not secret or len(text) > SECRET_BYTES_MAX:
        what = "is empty" if not secret else f"is larger than {SECRET_BYTES_MAX} bytes"
        raise SettingsWrong(f"{setting}: the file {path} {what}")
    return secret
