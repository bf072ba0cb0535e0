"""Plays a scene: starts the parts and the agents, kills whom the scene wants killed, waits for the end, judges the
world.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import stripe

from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port, make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.parts import Part, Parts, caller_of, environment, make_topics
from amends.local.servers import Servers
from amends.local.story.agent import FAILED
from amends.local.story.listener import Listener
from amends.local.story.narrator import Line, Narrator
from amends.local.story.remotes import Remotes, remotes
from amends.local.story.scenes import Fate, Scene
from amends.local.story.timeline import Timeline
from amends.local.story.tools import LANES
from amends.local.story.world import STRIPE_TOKEN, Kind, Thing, Wanted, judge
from amends.local.wire import answers, wait_for

LOOK_EVERY_S = 0.05
COMPENSATORS = 2
READY_DEADLINE_MS = 30_000
# Twenty agents that start at once on a small machine wait longer for one another than agents otherwise do.
PATIENCE = {"AMENDS_PRODUCER__STANDING_WITHIN_MS": "30000", "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "30000"}


@dataclass(slots=True)
class Ending:
    """How a scene ended: what is wrong (nothing, if all is well), and the world before and after amends cleared up."""

    problems: list[str] = field(default_factory=list[str])
    before: list[Thing] = field(default_factory=list[Thing])
    after: list[Thing] = field(default_factory=list[Thing])
    narrator: Narrator = field(default_factory=Narrator)


def play(scene: Scene, servers: Servers, timeline: Timeline, *, replication_factor: int = 1) -> Ending:
    """Play one scene on these servers, under a topic prefix of its own. Leaves no process and no file behind."""
    folder = make_folder("demo")
    run_id = uuid.uuid4().hex[:8]
    settings = KafkaSettings(
        bootstrap_servers=servers.kafka.bootstrap_servers,
        topic_prefix=f"amends-demo-{run_id}",
        lanes=LANES,
        partitions=4,
        replication_factor=replication_factor,
        embedded=servers.kafka.embedded,
    )
    try:
        with remotes() as outside:
            make_topics(settings)
            if servers.kafka.kind == "given":
                timeline.say("demo", f"topics of this run: {settings.topic_prefix}.*; they stay on the Kafka you gave")
            parts = Parts({**environment(settings, servers.redis.url), **outside.environment, **PATIENCE}, folder)
            return _Play(scene, settings, outside, parts, timeline, run_id).run()
    finally:
        remove_folder(folder)


class _Play:
    """One scene being played."""

    def __init__(
        self, scene: Scene, settings: KafkaSettings, outside: Remotes, parts: Parts, timeline: Timeline, run_id: str
    ) -> None:
        self.scene = scene
        self.outside = outside
        self.parts = parts
        self.timeline = timeline
        self.orders = [f"order-{run_id}-{number + 1}" for number in range(scene.orders)]
        self.listener = Listener(settings, self._heard)
        self.processors: list[Part] = []
        self.compensators: list[Part] = []
        self.health: dict[str, int] = {}
        self.agents: dict[str, Part] = {}
        self.fates: dict[str, Fate] = {}
        self.ending = Ending()

    def run(self) -> Ending:
        try:
            self._start()
            self._watch()
        finally:
            self._let_all_go()
            self.parts.stop()
            self.listener.stop()
        self.ending.narrator = self.listener.ask(lambda narrator: narrator)
        self.ending.after = self.outside.world()
        self.ending.problems += judge(self.ending.after, self._expected()) + self._unkept()
        return self.ending

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for fault in self.scene.faults:
            self.outside.set_fault(self._base(fault.service), fault.call, fault.fault, fault.times)
        self.listener.start()
        self.processors.append(self._start_part("processor", "processor"))
        lanes = [argument for lane in LANES for argument in ("--lane", lane)]
        for number in range(1, COMPENSATORS + 1):
            name = f"compensator-{number}"
            self.compensators.append(self._start_part(name, "compensator", "amends.local.story.tools", *lanes))
        running = ", ".join(f"{part.name} (pid {part.pid})" for part in (*self.processors, *self.compensators))
        self.timeline.say("demo", f"started {running}")
        self._wait_until_ready()
        method = _payment_method(self.outside)
        for order in self.orders:
            self._start_agent(order, method)

    def _start_part(self, name: str, *arguments: str) -> Part:
        port = free_port()
        part = self.parts.amends(name, *arguments, "--health-port", str(port))
        self.health[name] = port
        return part

    def _wait_until_ready(self) -> None:
        """Until every part answers: agents that come before the processor would only wait for it."""
        for part in (*self.processors, *self.compensators):
            ready = functools.partial(answers, self.health[part.name])
            if not wait_for(ready, alive=functools.partial(_runs, part), deadline_ms=READY_DEADLINE_MS):
                raise ServerUnavailable(f"{part.name} did not start:\n{part.last_words()}")

    def _start_agent(self, order: str, method: str) -> None:
        arguments = [order, "--payment-method", method, *(["--mail"] if self.scene.mail else [])]
        agent = self.parts.python(
            f"agent-{order}",
            "amends.local.story.agent",
            *arguments,
            on_line=lambda line: self.timeline.say("agent", line, order),
        )
        self.agents[order] = agent
        self.timeline.say("demo", f"started the agent (pid {agent.pid})", order)

    # --- as it happens ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until every order has met its fate and the world is as it should be, or the deadline passes."""
        end = time.monotonic() + self.scene.deadline_ms / 1000
        while time.monotonic() < end:
            self._kill_callers_of_labels()
            self._kill_callers_of_refunds()
            self._look_at_agents()
            self._look_at_parts()
            if len(self.fates) == len(self.orders) and self._is_over():
                return
            time.sleep(LOOK_EVERY_S)
        settled = self.listener.ask(lambda narrator: {order for order in self.orders if narrator.settled(order)})
        waiting = ", ".join(order for order in self.orders if order not in settled) or "none"
        self.ending.problems.append(f"not over after {self.scene.deadline_ms / 1000:.0f} s; not settled: {waiting}")

    def _is_over(self) -> bool:
        if not self.ending.before:
            self.ending.before = self.outside.world()
        settled = self.listener.ask(lambda narrator: all(narrator.settled(order) for order in self.orders))
        return settled and not judge(self.outside.world(), self._expected()) and not self._unkept()

    def _kill_callers_of_labels(self) -> None:
        base = self.outside.addresses.shipping
        for held in self.outside.held(base):
            agent = caller_of(int(held["peer_port"]), self.agents.values())
            if agent is None:
                continue
            order = next(order for order, part in self.agents.items() if part is agent)
            self.timeline.say("world", "the carrier has made the label, and its answer is held back", order)
            agent.kill()
            self.fates[order] = Fate.KILLED
            self.timeline.say("demo", f"SIGKILL to the agent (pid {agent.pid}), inside the call", order)
            if len(self.orders) == 1:
                self.ending.before = self.outside.world()

    def _kill_callers_of_refunds(self) -> None:
        base = self.outside.addresses.payments
        for held in self.outside.held(base):
            compensator = caller_of(int(held["peer_port"]), self.compensators)
            if compensator is None:
                continue
            self.timeline.say("world", "the money is given back, and the answer to the refund is held back")
            compensator.kill()
            self.compensators.remove(compensator)
            self.timeline.say("demo", f"SIGKILL to {compensator.name} (pid {compensator.pid}), inside the refund")

    def _look_at_agents(self) -> None:
        for order, agent in self.agents.items():
            code = agent.child.exit_code
            if order in self.fates or code is None:
                continue
            self.fates[order] = Fate.DONE if code == 0 else Fate.FAILED
            if code not in (0, FAILED):
                self.ending.problems.append(f"the agent of {order} ended with {code}:\n{agent.last_words()}")

    def _look_at_parts(self) -> None:
        for part in self.parts.dead([*self.processors, *self.compensators]):
            raise ServerUnavailable(f"{part.name} ended with {part.child.exit_code}:\n{part.last_words()}")
        if self.listener.failure is not None:
            raise self.listener.failure

    def _heard(self, line: Line) -> None:
        self.timeline.say(line.who, line.what, line.workflow_id)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _expected(self) -> dict[str, Mapping[Kind, Wanted]]:
        return {order: self.scene.expected(self.fates.get(order, Fate.FAILED)) for order in self.orders}

    def _unkept(self) -> list[str]:
        """Return which of the incidents and dead letters the scene wants are not there."""
        incidents, letters = self.listener.ask(lambda n: (len(n.incidents), len(n.dead_letters)))
        missing = []
        if incidents < self.scene.incidents_min:
            missing.append("missing: an incident, so nobody would know")
        if letters < self.scene.dead_letters_min:
            missing.append("missing: a dead letter")
        return missing

    def _let_all_go(self) -> None:
        for base in (self.outside.addresses.payments, self.outside.addresses.shipping):
            self.outside.let_go(base)

    def _base(self, service: str) -> str:
        return str(getattr(self.outside.addresses, service))


def _runs(part: Part) -> bool:
    return part.child.alive


def _payment_method(outside: Remotes) -> str:
    """Store a customer's card with the payment service and return its id."""
    client = stripe.StripeClient(
        STRIPE_TOKEN, base_addresses={"api": outside.addresses.payments}, max_network_retries=0
    )
    card: stripe.params.PaymentMethodCreateParamsCard = {
        "number": "4242424242424242",
        "exp_month": 12,
        "exp_year": 2040,
        "cvc": "123",
    }
    return client.v1.payment_methods.create({"type": "card", "card": card}).id
