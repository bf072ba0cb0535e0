"""What the exit codes of `amends` mean (2, wrong arguments, is the command line's own), and how a command ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Row = TypeVar("Row")

OK = 0
FAILED = 1  # amends could not do it: Kafka does not answer, topics are missing, an extra is not installed
USAGE = 2  # the command, an option or a setting is wrong
NOT_FOUND = 3  # there is no such workflow, incident or dead letter
NEEDS_ATTENTION = 4  # what it found needs a person: a topic is wrong, an incident is open, a decision comes too late
INTERRUPTED = 130


class Stop(Exception):  # noqa: N818 - an end with words and a code, not always an error
    """Ends the command: `words` go to standard error, `code` to the shell."""

    def __init__(self, words: str, code: int = FAILED) -> None:
        super().__init__(words)
        self.words = words
        self.code = code


def the_only(found: Mapping[str, Row], wanted: str, what: str, *, none: str) -> Row:
    """Return the only one of `found`, by id, that a person meant by `wanted`. Raises Stop if it is none or several."""
    if not found:
        raise Stop(none, NOT_FOUND)
    if len(found) > 1:
        raise Stop(f"{wanted!r} fits {len(found)} {what}: {', '.join(list(found)[:5])}", USAGE)
    return next(iter(found.values()))
