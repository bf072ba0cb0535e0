"""One run: a scenario drawn from a seed, disturbed, calmed, brought to rest, and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.simulation.agents import AgentProcess
from tests.simulation.case import Case
from tests.simulation.chances import Chance, FaultsAt, Mix, RandomFaults
from tests.simulation.decoding import shared_decoding
from tests.simulation.families import of_families
from tests.simulation.forgetting import unknowable
from tests.simulation.judge import Broken, judge, of_budgets, of_the_ledger, of_the_living, of_the_owner
from tests.simulation.lives import Belief
from tests.simulation.owners import SESSION_MS, ProcessorProcess
from tests.simulation.people import Approver, Container, Others, Person
from tests.simulation.pipeline import GROUP, LAG_MAX_MS, LANDS_MAX_MS, Pipeline
from tests.simulation.schedule import Process, Schedule
from tests.simulation.scripts import (
    Alone,
    Child,
    Script,
    everybody,
    script_of,
    with_children,
    with_guarded_tools,
    with_odd_tools,
    with_plans,
    with_savepoints,
    with_slow_tools,
    with_some_alone,
)
from tests.simulation.workers import Lane, WorkerProcess
from tests.simulation.world import SETTLE_MS

from amends.processors.breakers import BreakerTerms
from amends.producers import clock
from amends.producers.effects import Instant
from amends.producers.family import Reference

DISTURBED_MS = 40_000
AHEAD_MAX_MS = SETTLE_MS - LANDS_MAX_MS - LAG_MAX_MS
REST_MS = 600_000
"""After the last disturbance everything must come to rest within ten minutes of virtual time."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What agents want to do, and how the run is disturbed."""

    scripts: tuple[Script, ...]
    mix: Mix
    faults: RandomFaults | FaultsAt
    resumes: float = 0.5


@dataclass(slots=True)
class Verdict:
    """How a run ended."""

    broken: list[Broken]
    story: list[str]
    events: int
    points: dict[str, int]
    phases: dict[str, str] = field(default_factory=dict)


FAMILIES: dict[str, Callable[..., Mix]] = {
    "drawn": Mix.drawn,
    "hammered": Mix.hammered,
    "haunted": Mix.haunted,
    "usurped": Mix.usurped,
}


LAYERS = {"savepoints": 0.4, "odd tools": 0.4, "forgetting": 0.4, "odd clocks": 0.4, "families": 0.25, "budgets": 0.2}
LAYERS |= {"slow tools": 0.2, "approvals": 0.15, "plans": 0.2, "standing alone": 0.3, "containing": 0.1}
LAYERS |= {"folding anew": 0.1, "editing": 0.1, "retention": 0.1, "unread": 0.1}
"""What may come on top of a family of disturbances, and how often: each is drawn from a stream of its own."""
SINCE = {"editing": 2_000_000, "retention": 3_000_000, "unread": 7_000_000}
"""From which seed on a layer may be drawn: a new one begins behind those that are kept, which stay what they were."""
LOOKS_MS = 1_000
"""How often the ledger looks what is to go."""


def drawn(
    seed: int, *, family: str = "", layers: frozenset[str] | None = None, keeps_a1: bool = True
) -> tuple[Scenario, Random]:
    """Return the scenario of a seed, of any family of disturbances or of the one named, with any layers or those."""
    chance = Chance(seed)
    chosen = chance.choice(("drawn", "drawn", "hammered", "haunted", "usurped"))
    if layers is None:
        on_top = Random(f"{seed} layers")
        may = [] if family else [layer for layer in LAYERS if seed >= SINCE.get(layer, 0)]
        layers = frozenset(layer for layer in may if on_top.random() < LAYERS[layer])
    family = family or chosen
    mix = FAMILIES[family](chance, keeps_a1=keeps_a1)
    if not keeps_a1:
        mix.people = 0.0  # who rules on what a sleeper may still do, rules for it
    hammered = family == "hammered"
    count = 1 if hammered else chance.choice((1, 1, 1, 2))
    flow = Random(f"{seed} data flow")
    scripts = [script_of(f"w{number}", chance, flow, hammered=hammered) for number in range(count)]
    if "savepoints" in layers:
        back = Random(f"{seed} savepoints")
        scripts = [with_savepoints(script, back) for script in scripts]
    if "odd tools" in layers:
        odd = Random(f"{seed} odd tools")
        scripts = [with_odd_tools(script, odd) for script in scripts]
        mix.others = odd.choice((0.0, 0.5, 0.9))
    if "forgetting" in layers:
        late = Random(f"{seed} forgetting")
        mix.grace_ms = late.choice((200, 2_000, 10_000))
        mix.late_ms = (*mix.late_ms, 15_000, 30_000)
        mix.repeated = max(mix.repeated, late.choice((0.0, 0.05, 0.15)))
        mix.lives = late.choice((0, 1, 2))
    if "odd clocks" in layers:
        odd = Random(f"{seed} odd clocks")
        mix.skew_ms = odd.choice((500, 4_000, 45_000))
        mix.rollbacks = odd.choice((0, 1, 3))
    if "slow tools" in layers:
        slow = Random(f"{seed} slow tools")
        scripts = [with_slow_tools(script, slow) for script in scripts]
        mix.later_dropped = slow.choice((0.0, 0.2))
        mix.callback_lost = slow.choice((0.0, 0.3, 1.0))
    if "approvals" in layers:
        asked = Random(f"{seed} approvals")
        scripts = [with_guarded_tools(script, asked) for script in scripts]
        mix.approvals = asked.choice((0.5, 0.9, 1.0))
    if "retention" in layers:
        gone = Random(f"{seed} retention")
        mix.retention_ms = gone.choice((12_000, 16_000, 24_000))
        mix.grace_ms = min(mix.grace_ms, gone.choice((200, 2_000)))
        mix.skew_ms = min(mix.skew_ms, 500)  # a clock that is wrong by more than a retention carries too late
        mix.anew = max(mix.anew, gone.choice((0, 1, 2)))
        mix.lives = max(mix.lives, gone.choice((0, 0, 1)))
        # A retention is to be longer than a parent, or a person, may want undone what has closed: that is not carried.
        layers -= {"families", "containing"}
    if "families" in layers:
        bond = Random(f"{seed} families")
        mix.partitions = bond.choice((1, 2, 2))
        scripts = [with_children(script, bond) for script in scripts]
    if "plans" in layers:
        again = Random(f"{seed} plans")
        scripts = [with_plans(script, again) for script in scripts]
    if "standing alone" in layers:
        alone = Random(f"{seed} standing alone")
        scripts = [with_some_alone(script, alone) for script in scripts]
    if "containing" in layers:
        mix.containments = Random(f"{seed} containing").choice((1, 1, 2))
    if "folding anew" in layers:
        mix.anew = Random(f"{seed} folding anew").choice((1, 1, 2))
    if "editing" in layers and keeps_a1:
        edits = Random(f"{seed} editing")
        mix.edits, mix.people = edits.choice((0.3, 0.7, 0.9)), 1.0
        mix.undo_refused, mix.undo_uncertain = edits.choice((0.4, 0.7)), edits.choice((0.0, 0.02, 0.1))
    if "unread" in layers:
        mix.unread = Random(f"{seed} unread").choice((0.1, 0.3, 0.6))
    if "budgets" in layers:
        mix.budgets = _budgets(Random(f"{seed} budgets"))
    return Scenario(tuple(scripts), mix, RandomFaults(mix, chance), chance.choice((0.0, 0.5, 1.0))), chance


def _budgets(chance: Random) -> dict[str, Any]:
    """How many undos may be under way, how many may begin a minute, and when a tool is left alone."""
    return {
        "breaker": BreakerTerms(chance.choice((0, 1, 1, 2)), chance.choice((300, 1_500, 8_000)), 20_000, 3_000),
        "tool_undos_max": chance.choice((1, 2, 1_000)),
        "lane_undos_max": chance.choice((1, 1, 2, 1_000)),
        "tool_undos_per_minute": chance.choice((None, None, 30)),
    }


@dataclass(eq=False)
class Side:
    """One partition: who folds it, and who serves its share of the lane."""

    number: int
    processors: list[ProcessorProcess]
    owner: ProcessorProcess
    lane: Lane
    workers: list[WorkerProcess]


class Run:
    """Everything that lives in one run."""

    def __init__(self, scenario: Scenario, chance: Random, *, tell: bool) -> None:
        self.scenario = scenario
        self.chance = chance
        self.story: list[str] = []
        self._tell = tell
        self.schedule = Schedule(scenario.faults, self._say, tells=tell)
        scripts = everybody(scenario.scripts)
        tools = [tool for script in scripts for tool in script.tools]
        self.pipeline = Pipeline(self.schedule, scenario.mix, chance, tools, scenario.faults.mishaps)
        self.schedule.on_kill = self._killed
        self.schedule.on_freeze = self._frozen
        self.beliefs = {script.workflow_id: Belief(plans=script.plans) for script in scripts}
        self.agents: list[AgentProcess] = []
        self.sides = [self._side(number) for number in range(scenario.mix.partitions)]
        self.person = Person(self.pipeline, self.beliefs)
        self._names = 10

    def play(self) -> Verdict:
        """Run to the end and judge."""
        with virtual_clock(lambda: self.schedule.now_ms), shared_decoding():
            for side in self.sides:
                side.owner.take()
                side.workers[0].take()
            for script in self.scenario.scripts:
                self.schedule.after(
                    self.chance.randint(1, 200) if self.scenario.mix.slow else 1,
                    partial(self._begin, script, resumes=False),
                )
            self._disturb()
            start_ms = self.schedule.now_ms
            calm_ms = start_ms + DISTURBED_MS
            self.schedule.run(None if self._is_random else self._at_rest, calm_ms)
            self._calm()
            rest = self.schedule.run(self._at_rest, self.schedule.now_ms + REST_MS)
            return self._verdict(rest)

    @property
    def _is_random(self) -> bool:
        return isinstance(self.scenario.faults, RandomFaults)

    def _say(self, now_ms: int, who: str, what: str) -> None:
        if self._tell:
            self.story.append(f"{now_ms - 1_000_000:>8} {who:<14} {what}")

    # --- who lives --------------------------------------------------------------------------------------------------

    def _side(self, number: int) -> Side:
        processors = [self._processor(2 * number + n, number) for n in range(2)]
        lane = Lane(number)
        workers = [self._worker(2 * number + n, lane) for n in range(2)]
        return Side(number, processors, processors[0], lane, workers)

    def _processor(self, number: int, partition: int) -> ProcessorProcess:
        process = ProcessorProcess(self.pipeline, f"processor-{number}", partition)
        process.refused = lambda: self.schedule.after(SESSION_MS // 2, lambda: self._rejoin(process))
        return process

    def _rejoin(self, process: ProcessorProcess) -> None:
        """The group means this one, and a sleeper that was late to take the partition has fenced it off."""
        if self.sides[process.number].owner is process and process.alive and not process.owns():
            process.take()

    def _worker(self, number: int, lane: Lane) -> WorkerProcess:
        return WorkerProcess(self.pipeline, lane, f"compensator-{number}")

    def _agent(
        self, script: Script, parent: Reference | None = None, alone: Alone | None = None, *, resumes: bool
    ) -> AgentProcess:
        name = f"agent-{script.workflow_id}-{len(self.agents)}"
        belief = self.beliefs[script.workflow_id]
        agent = AgentProcess(self.pipeline, script, belief, name, parent, alone, resumes=resumes)
        agent.begin_child = self._child
        belief.processes += 1
        self.agents.append(agent)
        agent.start()
        return agent

    def _begin(self, script: Script, *, resumes: bool) -> None:
        self._agent(script, resumes=resumes)

    def _child(self, child: Child, parent: Reference) -> AgentProcess:
        """An agent begins a child, or again one that it, or who ran before it, had begun."""
        resumes = self.beliefs[child.script.workflow_id].processes > 0
        return self._agent(child.script, parent, child.alone, resumes=resumes)

    def _again(self, process: AgentProcess) -> None:
        self._agent(process.script, process.parent, process.alone, resumes=True)

    def _killed(self, process: Process) -> None:
        if isinstance(process, AgentProcess):
            self.beliefs[process.script.workflow_id].disturbed = True
            if self.chance.random() < self.scenario.resumes:
                self.schedule.after(self.chance.choice((100, 3_000, 9_000)), lambda: self._again(process))
        else:
            self.schedule.after(SESSION_MS, self._heal)

    def _frozen(self, process: Process, duration_ms: int) -> None:
        if isinstance(process, AgentProcess):
            self.beliefs[process.script.workflow_id].disturbed = True
        noticed_ms = self.chance.choice((20, 300, SESSION_MS))  # it may have been silent for a while
        if not isinstance(process, AgentProcess) and duration_ms > noticed_ms:
            self.schedule.after(noticed_ms, lambda: self._take_from(process))
        if (
            isinstance(process, AgentProcess)
            and duration_ms > 2_000
            and self.chance.random() < self.scenario.resumes / 2
        ):
            self.schedule.after(1_000, lambda: self._again(process))

    def _take_from(self, process: Process) -> None:
        """The group has not heard from a process: another takes over, and the sleeper is a zombie."""
        if isinstance(process, ProcessorProcess):
            side = self.sides[process.number]
            if side.owner is process and process.alive:
                self._new_owner(side)
        elif isinstance(process, WorkerProcess) and process.lane.owner is process:
            self._new_worker(self.sides[process.lane.partition])

    def _heal(self) -> None:
        """Dead processes are started anew, and what they owned is somebody's again."""
        for side in self.sides:
            if not side.owner.alive:
                self._new_owner(side)
            if side.lane.owner is None or not side.lane.owner.alive:
                self._new_worker(side)

    def _new_owner(self, side: Side) -> None:
        others = [
            p for p in side.processors if p is not side.owner and p.alive and p.frozen_until_ms <= self.schedule.now_ms
        ]
        if not others:
            self._names += 1
            others = [self._processor(self._names, side.number)]
            side.processors.append(others[0])
        side.owner = others[0]
        self.schedule.say(side.owner.name, "takes the partition")
        side.owner.take()

    def _fold_anew(self, side: Side) -> None:
        """Its processors are stopped, and one is started with `--refold`: what was kept is left behind."""
        for processor in side.processors:
            processor.alive = False
        self.schedule.say("operator", f"has partition {side.number} folded anew")
        self.pipeline.broker.leave_behind(self.pipeline.topics, side.number)
        self._new_owner(side)

    def _new_worker(self, side: Side) -> None:
        others = [
            w
            for w in side.workers
            if w is not side.lane.owner and w.alive and w.frozen_until_ms <= self.schedule.now_ms
        ]
        if not others:
            self._names += 1
            others = [self._worker(self._names, side.lane)]
            side.workers.append(others[0])
        self.schedule.say(others[0].name, "takes the lane")
        others[0].take()

    # --- disturbance and rest ---------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        mix = self.scenario.mix
        for _ in range(mix.flushes):
            self.schedule.after(self._sometime_ms(), self._flush)
        for _ in range(mix.rollbacks):
            self.schedule.after(self._sometime_ms(), self._remember_registry)
        for _ in range(mix.lives):
            script, resumes = self.chance.choice(self.scenario.scripts), self.chance.random() < 0.5
            again = partial(self._begin, script, resumes=resumes)
            self.schedule.after(self.chance.randint(2_000, DISTURBED_MS - 1_000), again)
        if mix.skew_ms:
            self._jump()
        for _ in range(mix.rebalances):
            side = self.sides[0] if len(self.sides) == 1 else self.chance.choice(self.sides)
            self.schedule.after(self._sometime_ms(), partial(self._new_worker, side))
            self.schedule.after(self._sometime_ms(), partial(self._new_owner, side))
        for _ in range(mix.anew):
            self.schedule.after(self._sometime_ms(), partial(self._fold_anew, self.chance.choice(self.sides)))
        for _ in range(mix.outages):
            self.schedule.after(self._sometime_ms(), self._outage)
        if mix.retention_ms:
            for side in self.sides:
                self._let_go(side, [])
        if self.chance.random() < mix.people:
            self.person.start()
        if mix.approvals:
            Approver(self.pipeline, Random(self.chance.random())).start()
        if mix.containments:
            Container(self.pipeline, Random(self.chance.random())).start(mix.containments)
        if mix.others:
            others = Others(self.pipeline, mix.others)
            others.start()

    def _sometime_ms(self) -> int:
        """Most of what matters happens early."""
        return self.chance.randint(0, self.chance.choice((100, 1_000, 5_000, DISTURBED_MS)))

    def _outage(self) -> None:
        """Facts wait for the ledger, and so does its owner; whoever waits for it is told late."""
        length_ms = self.chance.choice((500, 4_000, 7_500, 7_500, 20_000))
        self.schedule.say("ledger", f"takes nothing for {length_ms} ms")
        self.pipeline.outage_until_ms = max(self.pipeline.outage_until_ms, self.schedule.now_ms + length_ms)

    def _flush(self) -> None:
        self.schedule.say("redis", "is flushed")
        self.pipeline.registry.flush()

    def _let_go(self, side: Side, kept: list[int]) -> None:
        """The ledger forgets what is older than its retention, but nothing that a processor has not had at least half
        of that long, at work: that is what a retention is to be chosen for."""
        broker, ledger, schedule = self.pipeline.broker, self.pipeline.topics.ledger, self.schedule
        retention_ms = self.scenario.mix.retention_ms
        now = broker.committed(GROUP, ledger, side.number) or 0
        if side.owner.is_at_work():
            kept.append(now)
        looks = retention_ms // 2 // LOOKS_MS
        if len(kept) > looks:
            old = broker.offset_at(ledger, side.number, schedule.now_ms - retention_ms)
            start, before = broker.start(ledger, side.number), min(old, now, *kept[-looks - 1 :])
            if before > start:
                broker.forget(ledger, side.number, before)
                schedule.say(self.pipeline.ledger_name(side.number), f"begins at {before} from now on")
        schedule.after(LOOKS_MS, partial(self._let_go, side, kept))

    def _remember_registry(self) -> None:
        """Keep a copy of the registry, and bring it back later: a failover to a replica that lags."""
        entries = dict(self.pipeline.registry._entries)
        later_ms = self.chance.choice((5, 200, 3_000))
        self.schedule.after(later_ms, lambda: self._roll_back(entries))

    def _roll_back(self, entries: dict[str, Any]) -> None:
        self.schedule.say("redis", "falls back to an older state")
        self.pipeline.registry._entries = entries

    def _jump(self) -> None:
        """The clocks of the processors' machines jump, now and then: back by anything, ahead by less than what is left
        of `settle_ms` when a remote has shown its effect, for a probe is sent by that clock."""
        skew_ms = self.scenario.mix.skew_ms
        for processor in self._processors():
            processor.skew_ms = 0 if self.pipeline.calm else self.chance.randint(-skew_ms, min(skew_ms, AHEAD_MAX_MS))
        if not self.pipeline.calm:
            self.schedule.after(self.chance.randint(50, 15_000), self._jump)

    def _calm(self) -> None:
        self.pipeline.calm = True
        self.scenario.faults.stopped = True
        for processor in self._processors():
            processor.skew_ms = 0
        self._heal()

    def _processors(self) -> list[ProcessorProcess]:
        return [processor for side in self.sides for processor in side.processors]

    def _at_rest(self) -> bool:
        if any(
            not s.owner.owns() or s.owner.frozen_until_ms > self.schedule.now_ms or not s.owner.idle()
            for s in self.sides
        ):
            return False
        if any(agent.alive and not agent.over for agent in self.agents) or len(self.agents) < len(
            self.scenario.scripts
        ):
            return False
        workers = [(w, w is side.lane.owner) for side in self.sides for w in side.workers]
        if any(w.alive and not w.idle() for w, owns in workers if owns or w.running()):
            return False
        end = self.pipeline.broker.end
        ledger = self.pipeline.topics.ledger
        return all(s.owner.partition().folded_to == end(ledger, s.number) - 1 for s in self.sides)

    def _verdict(self, rest: bool) -> Verdict:
        pipeline, mix = self.pipeline, self.scenario.mix
        cases = [
            Case(
                pipeline.broker.whole(pipeline.topics.ledger, side.number),
                pipeline.terms,
                pipeline.world.reached,
                side.number,
            )
            for side in self.sides
        ]
        beliefs: list[dict[str, Belief]] = [{} for _ in self.sides]
        for workflow_id, belief in self.beliefs.items():
            beliefs[pipeline.partition_of(workflow_id)][workflow_id] = belief
        if mix.retention_ms and rest:
            for side, case, believed in zip(self.sides, cases, beliefs, strict=True):
                case.unknowable = unknowable(case, side.owner.partition(), pipeline.terms, believed)
        broken = judge(pipeline.world, cases, beliefs, keeps_a1=mix.keeps_a1)
        broken.extend(of_families(pipeline.world, cases, pipeline.partition_of, keeps_a1=mix.keeps_a1))
        for side, case, believed in zip(self.sides, cases, beliefs, strict=True):
            if not (mix.ack_lost or mix.write_refused):
                broken.extend(of_the_living(case, believed))
            if "processor" not in mix.roles and not mix.rebalances and not mix.anew:
                broken.extend(of_budgets(case, pipeline.terms))
            if rest:
                gone = bool(mix.retention_ms)
                broken.extend(of_the_owner(case, side.owner.partition(), believed, gone=gone))
            if mix.retention_ms:
                start = pipeline.broker.start(pipeline.topics.ledger, side.number)
                broken.extend(of_the_ledger(case, start, pipeline.terms, believed))
        if not rest:
            broken.append(Broken(6, "ten minutes after the last disturbance something is still going on"))
        return Verdict(broken, self.story, self.schedule.events, getattr(self.scenario.faults, "counts", {}))


@contextmanager
def virtual_clock(now_ms: Callable[[], int]) -> Iterator[None]:
    """Let the producers' two clocks show virtual time."""
    before = (clock.elapsed_ms, clock.wall_ms, clock.now)
    clock.elapsed_ms = now_ms
    clock.wall_ms = now_ms
    clock.now = lambda: Instant(now_ms(), now_ms())
    try:
        yield
    finally:
        clock.elapsed_ms, clock.wall_ms, clock.now = before


def play(
    seed: int,
    *,
    family: str = "",
    layers: frozenset[str] | None = None,
    tell: bool = False,
    keeps_a1: bool = True,
) -> Verdict:
    """Play the run of a seed."""
    scenario, chance = drawn(seed, family=family, layers=layers, keeps_a1=keeps_a1)
    return Run(scenario, chance, tell=tell).play()
