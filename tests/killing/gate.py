"""The network before the outside world: every call of agents and compensators passes here, and strikes fall here.

One gate per service, in threads of the driver's process. It knows whose order a call is about: forward calls carry the
order, backward ones the id or the key of something that was made for it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from urllib.parse import unquote_plus, urlsplit

from tests.killing.strikes import Moment, Plan, Strike

from amends.local.story.gate import Answer, PassingHandler, call_of
from amends.local.story.http_service import QuietServer, pattern_of

REFUSED_CALL = "POST /orders"
TOKENS = re.compile(r"[A-Za-z0-9_.:-]+")

Hit = Callable[[str, Strike, int], bool]
"""Called with the order, the strike and the caller's port; tells whether the caller is gone."""


@dataclass
class Orders:
    """Which strikes are left, and whose each id is. Used from many request threads."""

    hit: Hit
    _plans: dict[str, Plan] = field(default_factory=dict)
    _left: dict[str, list[Strike]] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, order: str, plan: Plan) -> None:
        with self._lock:
            self._plans[order] = plan
            self._left[order] = list(plan.strikes)
            self._owners[order] = order

    def left(self, order: str) -> list[Strike]:
        """Return the strikes that have not fallen."""
        with self._lock:
            return list(self._left[order])

    def owner(self, *texts: str) -> str:
        """Return the order that one of the words in these texts belongs to, empty if none does."""
        words = [word for text in texts for word in TOKENS.findall(unquote_plus(text))]
        with self._lock:
            return next((self._owners[word] for word in words if word in self._owners), "")

    def learn(self, order: str, identity: str) -> None:
        with self._lock:
            self._owners[identity] = order

    def refuses(self, order: str, call: str) -> bool:
        return call == REFUSED_CALL and order in self._plans and self._plans[order].refused

    def strike(self, order: str, call: str, moment: Moment, port: int) -> bool:
        """Let fall what is planned for here; return whether the caller is gone."""
        with self._lock:
            left = self._left.get(order, [])
            now = [strike for strike in left if strike.call.name == call and strike.moment is moment]
            for strike in now:
                left.remove(strike)
        gone = [self.hit(order, strike, port) for strike in now]
        return any(gone)


def make_gate(upstream: str, orders: Orders, *, stripe: bool) -> ThreadingHTTPServer:
    """Return a gate before `upstream` (http://host:port) on 127.0.0.1; the caller runs and closes it."""

    class Handler(PassingHandler):
        target = urlsplit(upstream).netloc

        def serve(self, method: str) -> None:
            content = self.content()
            path = urlsplit(self.path).path
            call = call_of(method, path) if stripe else pattern_of(method, path)[0]
            order, port = orders.owner(self.path, content.decode()), self.client_address[1]
            if orders.refuses(order, call):
                self.send(422, [("Content-Type", "application/json")], b'{"error": "refused"}')
            elif orders.strike(order, call, Moment.BEFORE, port):
                self.close_connection = True
            else:
                self._pass(order, call, port, self.pass_on(method, content))

        def _pass(self, order: str, call: str, port: int, answer: Answer) -> None:
            status, headers, body = answer
            if order and status < 300:
                orders.learn(order, _identity(body))
            if orders.strike(order, call, Moment.AFTER, port):
                self.close_connection = True
                return
            self.send(status, headers, body)
            orders.strike(order, call, Moment.ANSWERED, port)

    return QuietServer(("127.0.0.1", 0), Handler)


def _identity(body: bytes) -> str:
    """Return the id in an answer; empty where there is none."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    return str(answer.get("id", "")) if isinstance(answer, dict) else ""


def pause(strike: Strike) -> None:
    """Wait as long as the strike says that its victim lives on after the answer."""
    time.sleep(strike.delay_ms / 1000)
