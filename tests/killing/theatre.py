"""Plays runs on one set of topics, parts and services, several at once, and judges each by the outside world alone."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from tests.killing.gate import pause
from tests.killing.outside import Gates, gates
from tests.killing.stage import Stage, signal_tree
from tests.killing.strikes import FROZEN_MS, Act, Plan, Said, Strike, allowed

from amends.kafka.settings import KafkaSettings
from amends.local.parts import Part, Parts, caller_of, environment, make_topics
from amends.local.servers import Servers
from amends.local.story.agent import FAILED as REFUSED_EXIT
from amends.local.story.cards import payment_method
from amends.local.story.listener import Listener
from amends.local.story.narrator import CLOSED, Line
from amends.local.story.remotes import Remotes, remotes
from amends.local.story.tools import LANES
from amends.local.story.world import Thing, judge
from amends.schemas.topics import TRANSACTIONS

AGENT_DEADLINE_S = 120.0
CLOSED_DEADLINE_S = 150.0
LOOK_EVERY_S = 0.1
ENGINE = "AMENDS_PROCESSOR__ENGINE"
PATIENCE = {"AMENDS_PRODUCER__STANDING_WITHIN_MS": "60000", "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "60000"}


@dataclass
class Run:
    """One run. `lines` is its time line."""

    plan: Plan
    order: str
    begun_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    agent: Part | None = None
    said: Said | None = None
    phase: str = ""
    killed: bool = False
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Theatre:
    """Made by `theatre`. `play` may be called from several threads at once."""

    def __init__(
        self,
        settings: KafkaSettings,
        redis_url: str,
        outside: Remotes,
        parts: Parts,
        method: str,
        gates: Gates,
        stage: Stage | None = None,
    ) -> None:
        self.settings = settings
        self.outside = outside
        self.method = method
        self.parts = parts
        self.runs: dict[str, Run] = {}
        self.stage = stage or Stage(parts, self._tell)
        self.stage.told = self._tell
        self.listener = Listener(settings, self._heard)
        self.orders = gates.orders
        self.orders.hit = self._hit
        self.lines: list[str] = []
        self._registry = redis.Redis.from_url(redis_url)
        self._begun_s = time.monotonic()
        self._tag = uuid.uuid4().hex[:4]
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self.listener.start()
        self.stage.start()
        self._watcher.start()

    def stop(self) -> None:
        self._done.set()
        if self._watcher.is_alive():
            self._watcher.join(10)
        self.stage.stop()
        self.listener.stop()

    def play(self, plan: Plan) -> Run:
        """Play one run to its end and judge it. Blocks."""
        run = Run(plan, f"order-{plan.seed}-{self._tag}")
        self.runs[run.order] = run
        self.orders.add(run.order, plan)
        arguments = [run.order, "--payment-method", self.method]
        run.agent = self.parts_of(run).python(
            f"agent-{run.order}", "amends.local.story.agent", *arguments, on_line=lambda line: self._tell(line, run)
        )
        run.said = self._await_agent(run, run.agent)
        self._await_closed(run)
        self.judge(run, self.outside.world())
        run.took_s = time.monotonic() - run.begun_s
        return run

    def parts_of(self, run: Run) -> Parts:
        """Return those of which the agent of a run is to be."""
        return self.parts

    def judge(self, run: Run, world: list[Thing]) -> None:
        """Add what is wrong with the world of this run, and what nobody should have been asked about."""
        assert run.said is not None
        things = [thing for thing in world if thing.order == run.order]
        verdicts = [judge(things, {run.order: wanted}) for wanted in allowed(run.plan, run.said)]
        run.problems += [problem for problem in min(verdicts, key=len) if problem not in run.problems]
        if run.said is Said.SUCCEEDED and run.phase not in ("", "SUCCEEDED", "FINISHING"):
            run.problems.append(f"the agent was told of a success, and the workflow is {run.phase}")
        for incident in self.listener.ask(lambda narrator: narrator.open_incidents(run.order)):
            told = f"an incident that no one needs: {incident.summary}"
            run.problems += [told] if told not in run.problems else []

    def fallen(self) -> tuple[int, int]:
        """Return how many strikes fell, of how many: some calls are never made."""
        planned = sum(len(run.plan.strikes) for run in self.runs.values())
        return planned - sum(len(self.orders.left(order)) for order in self.runs), planned

    def strays(self) -> list[Thing]:
        """Return what was done for nobody's order."""
        return [thing for thing in self.outside.world() if thing.order not in self.runs]

    def _await_agent(self, run: Run, agent: Part) -> Said:
        end = time.monotonic() + AGENT_DEADLINE_S
        while (code := agent.child.exit_code) is None:
            if time.monotonic() > end:
                run.problems.append(f"the agent did not end within {AGENT_DEADLINE_S:.0f} s")
                agent.kill()
            time.sleep(LOOK_EVERY_S)
        if run.killed:
            return Said.KILLED
        time.sleep(LOOK_EVERY_S)  # its last line comes through a thread
        if code == REFUSED_EXIT:
            return Said.REFUSED
        if code != 0:
            self._tell(f"the agent ended with {code}", run)
            return Said.FAILED
        return Said.SUCCEEDED if any("is done: Succeeded" in line for line in run.lines) else Said.UNCERTAIN

    def _await_closed(self, run: Run) -> None:
        end = time.monotonic() + CLOSED_DEADLINE_S
        while time.monotonic() < end:
            phase = self.listener.ask(lambda narrator: narrator.phase(run.order))
            incidents = self.listener.ask(lambda narrator: narrator.open_incidents(run.order))
            run.phase = str(phase.value)
            if phase in CLOSED or (incidents and phase not in CLOSED and self._stands_still(run)):
                return
            if self.listener.failure is not None:
                raise self.listener.failure
            time.sleep(LOOK_EVERY_S)
        run.problems.append(f"not closed after {CLOSED_DEADLINE_S:.0f} s: {run.phase}")

    def _stands_still(self, run: Run) -> bool:
        """Whether an open incident has stood for half the deadline: it may still be closed by a late fact."""
        return time.monotonic() - run.begun_s > CLOSED_DEADLINE_S / 2

    # --- strikes ------------------------------------------------------------------------------------------------------

    def _hit(self, order: str, strike: Strike, port: int) -> bool:
        run = self.runs[order]
        pause(strike)
        self._tell(f"STRIKE: {strike}", run)
        match strike.act:
            case Act.FLUSH_REGISTRY:
                self._registry.flushall()
            case Act.KILL_PROCESSOR:
                self.stage.kill_processor(run.plan.seed)
            case Act.FREEZE_PROCESSOR:
                self.stage.freeze_processor(run.plan.seed, FROZEN_MS)
            case Act.KILL_CALLER:
                return self._kill_caller(run, strike, port)
            case Act.FREEZE_CALLER:
                self._freeze_caller(run, strike, port)
        return False

    def _kill_caller(self, run: Run, strike: Strike, port: int) -> bool:
        if not strike.call.undoes:
            assert run.agent is not None
            run.killed = run.agent.child.alive
            run.agent.kill()
            return True
        part = self._compensator(run, port)
        if part is None:
            return False
        self._tell(f"it is {part.name}", run)
        self.stage.kill(part)
        return True

    def _freeze_caller(self, run: Run, strike: Strike, port: int) -> None:
        if not strike.call.undoes:
            assert run.agent is not None
            pid = run.agent.pid
            signal_tree(pid, signal.SIGSTOP)
            threading.Timer(FROZEN_MS / 1000, signal_tree, (pid, signal.SIGCONT)).start()
            return
        part = self._compensator(run, port)
        if part is not None:
            self._tell(f"it is {part.name}", run)
            self.stage.freeze(part, FROZEN_MS)

    def _compensator(self, run: Run, port: int) -> Part | None:
        found = caller_of(port, list(self.stage.compensators))
        if found is None:
            self._tell("its caller is gone already", run)
        return found

    # --- what happens -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self.stage.look()

    def _heard(self, line: Line) -> None:
        run = self.runs.get(line.workflow_id)
        self._tell(f"{line.who:12} {line.what}", run)

    def _tell(self, what: str, run: Run | None = None) -> None:
        line = f"{time.monotonic() - self._begun_s:8.2f} s  {what}"
        if run is not None:
            run.lines.append(line)
        self.lines.append(f"{line}  [{run.order}]" if run is not None else line)


@contextlib.contextmanager
def theatre(servers: Servers, folder: Path, engine: str = TRANSACTIONS) -> Iterator[Theatre]:
    """Have topics, services and parts for the length of a block; logs go to `folder`. Raises ServerUnavailable.

    `engine`: the one of the processors.
    """
    settings = KafkaSettings(
        bootstrap_servers=servers.kafka.bootstrap_servers,
        topic_prefix=f"amends-killing-{uuid.uuid4().hex[:8]}",
        lanes=LANES,
        partitions=8,
        replication_factor=1,
        embedded=servers.kafka.embedded,
    )
    with remotes() as outside, gates(outside) as passed:
        make_topics(settings, engine)
        variables = {**environment(settings, servers.redis.url), **passed.environment, **PATIENCE, ENGINE: engine}
        parts = Parts(variables, folder)
        played = Theatre(settings, servers.redis.url, outside, parts, payment_method(outside), passed)
        try:
            played.start()
            yield played
        finally:
            played.stop()
