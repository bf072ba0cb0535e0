"""The contracts of a partition, once per digest. They stay when their workflows are forgotten: as many as there were
versions of tools."""

from __future__ import annotations

from amends.schemas.codec import UnreadableRecord, decode
from amends.schemas.contract import Contract
from amends.schemas.keys import digest

NAME_CHARACTERS = 16


class ContractBook:
    """Contracts by digest, and as the bytes they came in."""

    def __init__(self) -> None:
        self.by_digest: dict[str, Contract] = {}
        self._digests: dict[bytes, str] = {}
        self._new: list[tuple[str, bytes]] = []

    def of(self, data: bytes) -> str:
        """Return the digest of a contract as a fact carries it, "" if it can't be read."""
        found = self._digests.get(data)
        return self.add(data) if found is None else found

    def add(self, data: bytes) -> str:
        """Take a contract; return its digest, "" if it can't be read."""
        name = digest(data)[:NAME_CHARACTERS]
        if name in self.by_digest:
            return name
        if not self.learn(name, data):
            return ""
        self._new.append((name, data))
        return name

    def learn(self, name: str, data: bytes) -> bool:
        """Take a contract that is kept already; return whether it can be read."""
        try:
            contract = decode(data)
        except UnreadableRecord:
            return False
        if not isinstance(contract, Contract):
            return False
        self.by_digest[name] = contract
        self._digests[data] = name
        return True

    def data_of(self, names: set[str]) -> list[bytes]:
        """Return the bytes of the contracts named, in order of their digests."""
        return [data for name, data in sorted((name, data) for data, name in self._digests.items()) if name in names]

    def take_new(self) -> list[tuple[str, bytes]]:
        """Return what was added since the last call."""
        new, self._new = self._new, []
        return new
