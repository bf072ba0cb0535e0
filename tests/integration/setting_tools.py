"""Tools that overwrite the content of a file: a plain one, whose handlers run in processes, and one in the loop."""

from __future__ import annotations

from pathlib import Path

from amends.tools import reversible

LANE = "files"


def content(path: str) -> str | None:
    file = Path(path)
    return file.read_text() if file.exists() else None


@reversible("settings.plain", lease="30s", settles_in="100ms")
def plain(path: str, text: str) -> None:
    Path(path).write_text(text)


@plain.capture
def plain_content(path: str) -> str | None:
    return content(path)


@plain.restore(arguments={"path": "input.path", "text": "captured"}, lane=LANE, lease="30s", settles_in="100ms")
def plain_back(path: str, text: str | None = None) -> None:
    put_back(path, text)


@reversible("settings.coroutine", lease="30s", settles_in="100ms")
async def coroutine(path: str, text: str) -> None:
    put_back(path, text)


@coroutine.capture(writes="input.text")
async def coroutine_content(path: str) -> str | None:
    return content(path)


@coroutine.restore(arguments={"path": "input.path", "text": "captured"}, lane=LANE, lease="30s", settles_in="100ms")
async def coroutine_back(path: str, text: str | None = None) -> None:
    put_back(path, text)


def put_back(path: str, text: str | None) -> None:
    if text is None:
        Path(path).unlink()
    else:
        Path(path).write_text(text)
