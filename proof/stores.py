"""Databases, one for each case, that share what no case has touched.

A domain's database takes tens of megabytes, and there are hundreds of cases. So a case's own holds copies of the
records that were read or written in it, made when they are first looked at; all others are the shared ones. The
domain's tools run on it and notice nothing. That no tool reached a shared record is checked at the end, by its hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from proof.domains import KITS, database_of
from proof.touched import Place, touched


class Table(dict[str, Any]):
    """A table of a case: records of the shared one, copied when they are looked at."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            super().__setitem__(key, deepcopy(super().__getitem__(key)))
            self._own.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict's own `get` passes by the copying

    def __setitem__(self, key: str, value: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def changed(self) -> Iterator[str]:
        """Yield the keys whose record is not as the shared one."""
        for key in self._own | (set(self.shared) - set(self)):
            if _dumped(super().get(key)) != _dumped(self.shared.get(key)):
                yield key


def _dumped(record: Any) -> Any:
    return None if record is None else record.model_dump()


@cache
def shared_database(domain: str) -> Any:
    return database_of(domain)


@dataclass
class Store:
    """The database of one case, and the domain's tools on it."""

    domain: str
    kit: Any = field(init=False)
    tables: dict[str, Table] = field(init=False)

    def __post_init__(self) -> None:
        shared = shared_database(self.domain)
        own = shared.model_copy()
        self.tables = {}
        for name in type(shared).model_fields:
            if isinstance(value := getattr(shared, name), dict):
                self.tables[name] = Table(value)
                setattr(own, name, self.tables[name])
        self.kit = KITS[self.domain](own)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Run a tool of the domain. Raises what it raises: ValueError where it refuses."""
        return self.kit.use_tool(tool, **deepcopy(dict(arguments)))

    def image(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the records that a write with these arguments may change, None for one that is not there."""
        return {str(place): self.read(str(place)) for place in touched(self.tables, arguments)}

    def restore(self, image: Mapping[str, Any]) -> None:
        """Write records back as an image has them; what it has as None is taken away."""
        for name, record in image.items():
            self._write(Place.parse(name), record)

    def differs(self) -> list[str]:
        """Return what is not as it was when the case began."""
        return [f"{name}/{key}" for name, table in self.tables.items() for key in table.changed()]

    def read(self, name: str) -> Any:
        """Return one record, None if it is not there."""
        place = Place.parse(name)
        record = self.tables[place.table].get(place.key)
        if record is not None and place.date:
            record = record.dates.get(place.date)
        return None if record is None else record.model_dump(mode="json")

    def _write(self, place: Place, record: Any) -> None:
        table = self.tables[place.table]
        if place.date:
            flight = table[place.key]
            whole = flight.model_dump(mode="json")
            table[place.key] = type(flight).model_validate({**whole, "dates": {**whole["dates"], place.date: record}})
        elif record is None:
            table.pop(place.key, None)
        else:
            kind = type(next(iter(table.shared.values())))
            table[place.key] = kind.model_validate(record)
