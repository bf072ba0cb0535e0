"""The compensator: consumes undo lanes and carries out what the fold commands.

Threads: one per lane that polls (`lane.py`), the follower's and the publisher's own (`amends.kafka`), a watchdog; one
event loop that does everything else. What is known for sure is on the ledger; all of this may be killed at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial

from amends.compensators.carrying import Parts, carry_out
from amends.compensators.clock import lease_clock_ms
from amends.compensators.dispatch import Dispatcher
from amends.compensators.followed import Followed
from amends.compensators.handlers import Handlers
from amends.compensators.lane import Delivery, LaneEvents, LaneThread
from amends.compensators.metrics import Metrics
from amends.compensators.processes import ProcessPool
from amends.compensators.settings import CompensatorSettings
from amends.compensators.starting import lanes_to_serve, loaded_tools, opened_registry, started_processes
from amends.compensators.waiting import require_handlers
from amends.compensators.watchdog import LoopWatchdog
from amends.kafka.errors import KafkaFault
from amends.kafka.follower import LedgerFollower
from amends.kafka.health import Health
from amends.kafka.letters import letting_through
from amends.kafka.publisher import Publisher
from amends.kafka.reaching import ReachingHealthServer, reach_of
from amends.kafka.rights import Part, rights_of
from amends.kafka.schema_registry_opening import with_schema_registry, with_schema_registry_metrics
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import require_topics
from amends.kafka.turned_away import turned_away

log = logging.getLogger(__name__)

STOP_MS = 10_000
LOOK_AGAIN_S = 1.0


class Worker:
    """One compensator process's work. `run` it once, in a loop of its own."""

    def __init__(self, kafka: KafkaSettings, settings: CompensatorSettings) -> None:
        self._kafka = kafka
        self._settings = settings
        self._instance = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        self.metrics = Metrics()
        self._lane_names: tuple[str, ...] = ()
        self._lanes: list[LaneThread] = []
        self._dispatcher: Dispatcher | None = None
        self._pool: ProcessPool | None = None
        self._followed: Followed | None = None
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once partitions have come."""
        self.health_port: int | None = None
        """The port that was taken, while the server runs."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve the lanes until `stop` is set, then drain.

        Raises:
            SettingsWrong, TopicsWrong, AccessRefused, ContractError, ModulesBroken, HandlersMissing, RegistryUnusable:
                at start, what to change.
            KafkaFault: the lanes can't be served any longer; the process should be started anew.
        """
        if self._settings.mode != "enforce":
            log.warning("AMENDS_MODE=%s: this compensator undoes nothing", self._settings.mode)
            with self._health_server():
                self.ready.set()
                await stop.wait()
            return
        tools = loaded_tools(self._settings)
        self._lane_names = lanes_to_serve(self._kafka, self._settings, tools)
        rights = rights_of(Part.COMPENSATOR, self._kafka, lanes=self._lane_names)
        await asyncio.to_thread(require_topics, self._kafka, rights)
        await asyncio.to_thread(require_handlers, self._kafka, self._settings, self._lane_names, tools)
        async with contextlib.AsyncExitStack() as stack:
            registry = await stack.enter_async_context(opened_registry(self._settings, self.metrics.registry_away.inc))
            watchdog = LoopWatchdog()
            stack.callback(watchdog.stop)
            self._pool = await stack.enter_async_context(started_processes(self._settings, tools))
            publisher = stack.enter_context(
                Publisher(letting_through(self._kafka), deadline_ms=self._settings.publish_deadline_ms)
            )
            follower = stack.enter_context(LedgerFollower(self._kafka, self._kafka.topics.ledger))
            handlers = Handlers(tools, self._pool, watchdog)
            parts = Parts(self._kafka, publisher, follower, registry, handlers, self.metrics, self._instance)
            stack.enter_context(self._health_server())
            await self._serve(parts, stop)

    # --- serving ----------------------------------------------------------------------------------------------------

    async def _serve(self, parts: Parts, stop: asyncio.Event) -> None:
        self._dispatcher = Dispatcher(
            lambda delivery: self._carry_out(parts, delivery),
            self._done,
            concurrency_max=self._settings.concurrency_max,
            of_tool_max=self._settings.of_tool_max,
        )
        loop = asyncio.get_running_loop()
        self._followed = Followed(
            parts.follower.follow,
            parts.follower.unfollow,
            self._dispatcher.runs_on,
            partial(loop.call_later, LOOK_AGAIN_S),
        )
        events = self._events(loop, self._dispatcher)
        self._lanes = [
            LaneThread(
                self._kafka,
                lane,
                events,
                session_ms=self._settings.session_timeout_ms,
                instance_id=self._settings.instance_id,
            )
            for lane in self._lane_names
        ]
        for lane in self._lanes:
            lane.start()
        log.info("compensator %s serves the lanes %s", self._instance, ", ".join(self._lane_names))
        waits = [asyncio.create_task(event.wait()) for event in (stop, self._ended)]
        try:
            while not (stop.is_set() or self._ended.is_set()):
                await asyncio.wait(waits, timeout=1, return_when=asyncio.FIRST_COMPLETED)
                if parts.follower.failure is not None:
                    self._end(parts.follower.failure)
        finally:
            for wait in waits:
                wait.cancel()
            await self._drain(self._dispatcher)
        if self._failure is not None:
            raise self._failure

    def _events(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> LaneEvents:
        def in_loop(call: Callable[..., None]) -> Callable[..., None]:
            def later(*arguments: object) -> None:
                with contextlib.suppress(RuntimeError):  # a closed loop: the process is ending
                    loop.call_soon_threadsafe(call, *arguments)

            return later

        waiting_max = self._settings.waiting_max
        # Half of the bound is let go before more is taken, so that it is not turned on and off with each command.
        full = [False]

        def is_full() -> bool:
            full[0] = dispatcher.waiting > (waiting_max // 2 if full[0] else waiting_max)
            return full[0]

        return LaneEvents(
            on_deliveries=in_loop(dispatcher.put),
            on_assigned=in_loop(self._came),
            on_gone=in_loop(self._went),
            is_full=is_full,
            on_end=in_loop(self._lane_ended),
        )

    async def _carry_out(self, parts: Parts, delivery: Delivery) -> None:
        try:
            await carry_out(parts, delivery)
        except Exception:
            # A bug of ours. The command is given up on here, not the partition: the fold repeats it until it has
            # STARTED, and finds it by its lease if it has.
            log.exception("a bug in the compensator; the command is left to the fold")
            self.metrics.broken.inc()
        self._done(delivery)
        self.metrics.seconds.observe((lease_clock_ms() - delivery.taken_at_ms) / 1000)

    def _done(self, delivery: Delivery) -> None:
        next(lane for lane in self._lanes if lane.lane == delivery.lane).done(delivery)

    def _came(self, partitions: list[int]) -> None:
        assert self._followed is not None
        self._followed.came(partitions)
        self.ready.set()

    def _went(self, partitions: list[int]) -> None:
        assert self._followed is not None
        self._followed.went(partitions)

    def _lane_ended(self, error: BaseException | None) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and self._failure is None:
            self._failure = error if isinstance(error, KafkaFault) else KafkaFault(f"a lane ended: {error!r}")
            self._failure.__cause__ = error
        self._ended.set()

    async def _drain(self, dispatcher: Dispatcher) -> None:
        for lane in self._lanes:
            lane.drain()
        left = await dispatcher.drain(self._settings.drain_ms)
        if left:
            log.warning("%d undos had begun and did not end in time; the fold finds them by their leases", left)
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            if not await asyncio.to_thread(lane.join, STOP_MS):
                log.warning("lane %s did not leave its group in time", lane.lane)

    # --- health -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _health_server(self) -> Iterator[None]:
        if self._settings.health_port is None:
            yield
            return
        server = ReachingHealthServer(
            reach_of(self._kafka),
            with_schema_registry(self.health),
            with_schema_registry_metrics(self._metrics_text),
            host=self._settings.health_host,
            port=self._settings.health_port,
        ).start()
        self.health_port = server.port
        log.info("/healthz and /metrics on %s:%d", self._settings.health_host, server.port)
        try:
            yield
        finally:
            server.stop()

    def health(self) -> Health:
        """Tell whether commands end and lanes are polled. Called from any thread."""
        dispatcher = self._dispatcher
        if dispatcher is None or not self._lanes:
            return Health(True, "starting")
        now_ms = lease_clock_ms()
        poll_age_ms = max(now_ms - lane.last_poll_ms for lane in self._lanes)
        oldest_ms = dispatcher.oldest_age_ms()
        detail: dict[str, object] = {
            "lanes": list(self._lane_names),
            "open": dispatcher.open,
            "oldest_command_ms": oldest_ms,
            "poll_age_ms": poll_age_ms,
            "processes_killed": self._pool.killed if self._pool is not None else 0,
        }
        if poll_age_ms > 3 * self._settings.session_timeout_ms:
            return Health(False, f"a lane was not polled for {poll_age_ms} ms", detail)
        if oldest_ms > self._settings.stall_ms and now_ms - dispatcher.last_end_ms > self._settings.stall_ms:
            return Health(False, f"no command ended for {now_ms - dispatcher.last_end_ms} ms", detail)
        if refused := turned_away.words():
            return Health(False, refused, detail, waits=True)
        return Health(True, "", detail)

    def _metrics_text(self) -> bytes:
        self.metrics.open.set(self._dispatcher.open if self._dispatcher is not None else 0)
        self.metrics.killed.set(self._pool.killed if self._pool is not None else 0)
        return self.metrics.text()
