"""The outside world: a process that holds the databases of all cases. Agents call its tools, compensators put back.

`python -m proof.databases` prints its port. It takes lines of JSON over TCP, `{"case", "domain", "do", …}`, and answers
each with one line: `{"value"}`, or `{"refused"}` where a tool of the domain says no. A case can ask that its next call
gets no answer, for an agent that is to be killed inside it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from proof.domains import KITS
from proof.stores import Store, shared_database

ADDRESS = "PROOF_DATABASES"
"""Environment variable: the port of the databases on this machine."""
LINE_BYTES_MAX = 1 << 22


class Refused(Exception):  # noqa: N818
    """A tool of the domain said no, by an exception. Whether it changed anything before is for the proof to see."""


class Silence(Exception):  # noqa: N818
    """Nothing is answered any more."""


class Databases:
    """All cases' databases, made when they are first asked for."""

    def __init__(self) -> None:
        self._stores: dict[str, Store] = {}
        self._silent: dict[str, str] = {}  # case -> when its next call falls silent: before or after its effect
        self._effects: dict[str, dict[str, Any]] = {}  # case -> what its silent call made of which records
        self._hashes = {domain: shared_database(domain).get_hash() for domain in KITS}

    def answer(self, asked: Mapping[str, Any]) -> Any:
        if asked["do"] == "untouched":
            return {domain: shared_database(domain).get_hash() == then for domain, then in self._hashes.items()}
        store = self._stores.get(asked["case"])
        if store is None:
            store = self._stores[asked["case"]] = Store(asked["domain"])
        match asked["do"]:
            case "call":
                return self._call(store, asked)
            case "silence":
                self._silent[asked["case"]] = asked["when"]
                return None
            case "silenced":
                return asked["case"] in self._effects
            case "lost":
                return [name for name, now in self._effects.get(asked["case"], {}).items() if store.read(name) != now]
            case "image":
                return store.image(asked["arguments"])
            case "restore":
                return store.restore(asked["image"])
            case "differs":
                return store.differs()
            case other:
                raise AssertionError(other)

    def _call(self, store: Store, asked: Mapping[str, Any]) -> Any:
        when = self._silent.pop(asked["case"], None)
        before = store.image(asked["arguments"]) if when is not None else {}
        answer, refused = None, ""
        if when != "before":
            try:
                answer = _plain(store.call(asked["tool"], asked["arguments"]))
            except ValueError as error:
                refused = str(error)
        if when is not None:
            after = store.image(asked["arguments"])
            self._effects[asked["case"]] = {name: now for name, now in after.items() if now != before[name]}
            raise Silence
        if refused:
            raise Refused(refused)
        return answer


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(item) for item in value] if isinstance(value, list) else value


async def _serve(databases: Databases, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        try:
            said: dict[str, Any] = {"value": databases.answer(json.loads(line))}
        except Refused as error:
            said = {"refused": str(error)}
        except Silence:
            await reader.read()  # until whoever waits for the answer is killed
            break
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
    writer.close()


async def main() -> None:
    databases = Databases()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(databases, reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def ask(case: str, do: str, **more: Any) -> Any:
    """Ask the databases' process.

    Raises:
        Refused: a tool of the domain said no.
        ConnectionError: there was no answer.
    """
    port = int(os.environ[ADDRESS])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LINE_BYTES_MAX)
    try:
        asked = {"case": case, "domain": case.partition("-")[0], "do": do, **more}
        writer.write(json.dumps(asked).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError("the databases closed the connection without an answer")
    said = json.loads(line)
    if "refused" in said:
        raise Refused(said["refused"])
    return said["value"]


if __name__ == "__main__":
    asyncio.run(main())
