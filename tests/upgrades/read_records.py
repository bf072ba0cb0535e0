"""Run by another version's interpreter: decodes records, a line of hex each, and says what it makes of them.

Knows nothing of the tests: only `amends.schemas` of the version it runs in. The last line holds its words: every value
of each enumeration, by its name.
"""

from __future__ import annotations

import enum
import json
import sys

from amends.schemas import commands, contract, facts
from amends.schemas.codec import UnreadableRecord, decode


def _words() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in (facts, commands, contract):
        for name, thing in vars(module).items():
            if isinstance(thing, type) and issubclass(thing, enum.Enum) and thing.__module__ == module.__name__:
                found[name] = [member.value for member in thing]
    return found


def main() -> None:
    for line in sys.stdin:
        try:
            print(type(decode(bytes.fromhex(line))).__name__)
        except UnreadableRecord as error:
            print(f"unreadable: {error}")
    print(json.dumps(_words()))


if __name__ == "__main__":
    main()
