"""How the story's tools and its judge speak to the services: one JSON call over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class Refused(Exception):  # noqa: N818 - what the service did
    """The service answered that it did not do it, and why."""


class NotFound(Refused):
    """The service knows nothing under this id."""


class Unavailable(Exception):  # noqa: N818 - what the service is
    """The service answered that it can't work now, or could not be reached, or did not answer: whether it did it is
    not known.
    """


def call(
    method: str, url: str, body: dict[str, Any] | None = None, *, key: str = "", timeout_s: float = 30, token: str = ""
) -> Any:
    """Do one call and return the decoded answer. Raises NotFound, Refused (4xx), Unavailable (everything else that is
    not success).
    """
    address = urlsplit(url)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    if token:
        headers["Authorization"] = f"Bearer {token}"
    path = address.path + (f"?{address.query}" if address.query else "")
    connection = http.client.HTTPConnection(address.netloc, timeout=timeout_s)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as broken:
        raise Unavailable(f"{method} {url}: {broken!r}") from broken
    finally:
        connection.close()
    if answer.status < 300:
        return json.loads(content)
    said = f"{method} {url}: {answer.status} {content.decode(errors='replace')[:200]}"
    if answer.status == 404:
        raise NotFound(said)
    raise Refused(said) if answer.status < 500 else Unavailable(said)
