"""Directs a scene: starts the parts and the agents, kills whom the scene wants killed, waits for the end, judges the
world.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amends.kafka.settings import KafkaSettings
from amends.local.errors import ServerUnavailable
from amends.local.parts import Parts, caller_of
from amends.local.story.agent import FAILED, GAVE_UP
from amends.local.story.calls import BY_NAME, SERVICES, RemoteCall
from amends.local.story.cards import payment_method
from amends.local.story.cast import Cast
from amends.local.story.listener import Listener
from amends.local.story.narrator import Line, Narrator
from amends.local.story.remotes import Remotes
from amends.local.story.scenes import Ended, Fate, Scene
from amends.local.story.timeline import Timeline
from amends.local.story.world import Kind, Thing, Wanted, judge
from amends.schemas.commands import IncidentState, Phase

LOOK_EVERY_S = 0.05
COMPENSATORS = 2
ENDS = {0: Ended.DONE, FAILED: Ended.FAILED, GAVE_UP: Ended.GAVE_UP}


@dataclass(slots=True)
class Ending:
    """How a scene ended: what is wrong (nothing, if all is well), and the world before and after amends cleared up."""

    problems: list[str] = field(default_factory=list[str])
    before: list[Thing] = field(default_factory=list[Thing])
    after: list[Thing] = field(default_factory=list[Thing])
    narrator: Narrator = field(default_factory=Narrator)


class Play:
    """One scene being played. `attached`: processors and compensators run elsewhere, and serve others too."""

    def __init__(
        self,
        scene: Scene,
        settings: KafkaSettings,
        outside: Remotes,
        parts: Parts,
        timeline: Timeline,
        run_id: str,
        *,
        attached: bool = False,
    ) -> None:
        self.attached = attached
        self.scene = scene
        self.outside = outside
        self.cast = Cast(parts)
        self.timeline = timeline
        self.orders = [f"order-{run_id}-{number + 1}" for number in range(scene.orders)]
        self.listener = Listener(settings, self._heard, among=frozenset(self.orders) if attached else None)
        self.fates: dict[str, Fate] = {}
        self.handled: set[tuple[str, int]] = set()
        self.agents_began_s = 0.0
        self.processor_kills_ms = [] if attached else list(scene.processor_kills_ms)
        # What is killed elsewhere is started again by others, and in their time.
        self.deadline_ms = scene.deadline_ms * (2 if attached else 1)
        self.ending = Ending()

    def run(self) -> Ending:
        try:
            self._start()
            self._watch()
        finally:
            self._let_all_go()
            self.cast.stop()
            self.listener.stop()
        self.ending.narrator = self.listener.ask(lambda narrator: narrator)
        self.ending.after = self._world()
        self.ending.problems += judge(self.ending.after, self._expected()) + self._unkept()
        return self.ending

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for fault in self.scene.faults:
            self.outside.set_fault(self._base(fault.service), fault.call, fault.fault, fault.times)
        self.listener.start()
        if not self.attached:
            self._start_parts()
        method = payment_method(self.outside)
        self.agents_began_s = time.monotonic()
        for order in self.orders:
            says = functools.partial(self._agent_says, order)
            agent = self.cast.start_agent(order, method, mail=self.scene.mail, on_line=says)
            self.timeline.say("demo", f"started the agent (pid {agent.pid})", order)

    def _start_parts(self) -> None:
        self.cast.start_processor()
        for _ in range(COMPENSATORS):
            self.cast.start_compensator()
        running = ", ".join(
            f"{part.name} (pid {part.pid})" for part in (*self.cast.processors, *self.cast.compensators)
        )
        self.timeline.say("demo", f"started {running}")
        self.cast.wait_until_ready()

    def _agent_says(self, order: str, line: str) -> None:
        self.timeline.say("agent", line, order)

    # --- as it happens ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until every order has met its fate and the world is as it should be, or the deadline passes."""
        end = time.monotonic() + self.deadline_ms / 1000
        while time.monotonic() < end:
            self._kill_held_callers()
            self._kill_processors()
            self._look_at_agents()
            self._look_at_parts()
            if len(self.fates) == len(self.orders) and self._is_over():
                return
            time.sleep(LOOK_EVERY_S)
        settled = self.listener.ask(lambda narrator: {order for order in self.orders if self._settled(order, narrator)})
        waiting = ", ".join(order for order in self.orders if order not in settled) or "none"
        self.ending.problems.append(f"not over after {self.deadline_ms / 1000:.0f} s; not settled: {waiting}")

    def _is_over(self) -> bool:
        if not self.ending.before:
            self.ending.before = self._world()
        settled = self.listener.ask(lambda narrator: all(self._settled(order, narrator) for order in self.orders))
        return settled and not judge(self._world(), self._expected()) and not self._unkept()

    def _settled(self, order: str, narrator: Narrator) -> bool:
        """Whether an order is closed, waits for a person, or was given up before it began."""
        fate = self.fates.get(order)
        never_began = fate is not None and fate.ended is Ended.GAVE_UP and narrator.phase(order) is Phase.NONE
        return never_began or narrator.settled(order)

    def _kill_held_callers(self) -> None:
        """Kill whoever waits inside a call that hangs. The call stays held: its caller is gone."""
        for service in SERVICES:
            for held in self.outside.held(self._base(service)):
                place = (service, int(held["peer_port"]))
                if place not in self.handled and self._handled(held):
                    self.handled.add(place)

    def _handled(self, held: Mapping[str, Any]) -> bool:
        """Kill who waits in this call; one that runs elsewhere is named, for it is not ours to kill."""
        call = BY_NAME[held["call"]]
        if self._kill_caller(int(held["peer_port"]), call, held["fault"]):
            return True
        if not (self.attached and call.undoes):
            return False
        self.timeline.say("world", call.told(held["fault"]))
        self.timeline.say("demo", f"the compensator at {held['peer_host']} waits for the answer, in vain")
        return True

    def _kill_caller(self, port: int, call: RemoteCall, fault: str) -> bool:
        caller = caller_of(port, [*self.cast.agents.values(), *self.cast.compensators])
        if caller is None:
            return False
        order = self.cast.order_of(caller)
        self.timeline.say("world", call.told(fault), order)
        caller.kill()
        if order:
            self.fates[order] = Fate(Ended.KILLED, call, fault)
            self.timeline.say("demo", f"SIGKILL to the agent (pid {caller.pid}), inside that call", order)
            if len(self.orders) == 1:
                self.ending.before = self._world()
            return True
        self.cast.compensators.remove(caller)
        self.timeline.say("demo", f"SIGKILL to {caller.name} (pid {caller.pid}), inside that call")
        if self.scene.restarts:
            another = self.cast.start_compensator()
            self.timeline.say("demo", f"started {another.name} (pid {another.pid})")
        return True

    def _kill_processors(self) -> None:
        since_ms = (time.monotonic() - self.agents_began_s) * 1000
        while self.processor_kills_ms and self.processor_kills_ms[0] <= since_ms:
            self.processor_kills_ms.pop(0)
            victim = self.cast.processors.pop()
            victim.kill()
            another = self.cast.start_processor()
            told = f"SIGKILL to {victim.name} (pid {victim.pid}); started {another.name} (pid {another.pid})"
            self.timeline.say("demo", told)

    def _look_at_agents(self) -> None:
        for order, agent in self.cast.agents.items():
            code = agent.child.exit_code
            if order in self.fates or code is None:
                continue
            self.fates[order] = Fate(ENDS.get(code, Ended.FAILED))
            # Of twenty some may give up, and all that holds of them is judged; of one nothing would have been shown.
            if code not in ENDS or (code == GAVE_UP and len(self.orders) == 1):
                self.ending.problems.append(f"the agent of {order} ended with {code}:\n{agent.last_words()}")

    def _look_at_parts(self) -> None:
        for part in self.cast.dead():
            raise ServerUnavailable(f"{part.name} ended with {part.child.exit_code}:\n{part.last_words()}")
        if self.listener.failure is not None:
            raise self.listener.failure

    def _heard(self, line: Line) -> None:
        self.timeline.say(line.who, line.what, line.workflow_id)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _expected(self) -> dict[str, Mapping[Kind, Wanted]]:
        return {order: self.scene.expected(self.fates.get(order, Fate(Ended.FAILED))) for order in self.orders}

    def _unkept(self) -> list[str]:
        """Return what is wrong with the incidents and dead letters that there are."""
        incidents, letters = self.listener.ask(lambda n: (list(n.incidents.values()), len(n.dead_letters)))
        wrong = []
        if len(incidents) < self.scene.incidents_min:
            wrong.append("missing: an incident, so nobody would know")
        if letters < self.scene.dead_letters_min:
            wrong.append("missing: a dead letter")
        if self.scene.incidents_min == 0:
            wrong += [f"an incident that no one needs: {i.summary}" for i in incidents if i.state is IncidentState.OPEN]
        return wrong

    def _let_all_go(self) -> None:
        for service in SERVICES:
            if self.attached:  # a switch that nobody met must not meet the next run
                self.outside.clear_faults(self._base(service))
            self.outside.let_go(self._base(service))

    def _world(self) -> list[Thing]:
        """Return what was done, for the orders of this run where the services serve others too."""
        things = self.outside.world()
        return [thing for thing in things if thing.order in self.orders] if self.attached else things

    def _base(self, service: str) -> str:
        return str(getattr(self.outside.addresses, service))
