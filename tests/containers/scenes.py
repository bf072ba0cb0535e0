"""What befalls the containers while a scene is played, and the scenes played so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.containers.project import Project

from amends.local.story.scenes import SCENES

HELD = re.compile(r"the compensator at (?P<address>\S+) waits for the answer, in vain")
FAILS = re.compile(r"^ *[\d.]+ s +agent +.*fails: ")
BEGINS = re.compile(r"started the agent \(pid")
KILLED = re.compile(r"SIGKILL to the agent")

Blow = Callable[[Project, re.Match[str], str], str]
"""Strikes, and says whom. The last argument is the engine whose processors are meant; empty: the default's."""


def kill(service: str) -> Blow:
    def blow(project: Project, _: re.Match[str], engine: str) -> str:
        victim = service.replace("processor-", f"processor-{engine}-") if engine else service
        project.kill(victim)
        return f"SIGKILL to {victim}"

    return blow


def restart(service: str) -> Blow:
    def blow(project: Project, _: re.Match[str], engine: str) -> str:
        project.compose("restart", service)
        return f"restarted {service}"

    return blow


def kill_who_waits(project: Project, found: re.Match[str], engine: str) -> str:
    service = project.service_at(found["address"])
    project.kill(service)
    return f"SIGKILL to {service}, inside that call"


BLOWS: Mapping[str, tuple[tuple[re.Pattern[str], Blow], ...]] = {
    "killed": ((KILLED, kill("processor-1")), (HELD, kill_who_waits)),
    "clean": ((BEGINS, kill("processor-2")),),
    "failed-call": ((FAILS, restart("kafka")),),
    "remote-down": ((FAILS, restart("redis")),),
    "irreversible": ((FAILS, kill("redis")),),
    "twenty": ((FAILS, kill("processor-1")), (HELD, kill_who_waits)),
}
"""In each scene, what happens once its time line says so."""
assert BLOWS.keys() == SCENES.keys(), "every scene of the demo is played"


@dataclass(slots=True)
class Played:
    """How one scene went."""

    exit_code: int = 0
    told: str = ""
    blows: list[str] = field(default_factory=list[str])

    def wrong(self, scene: str) -> list[str]:
        missing = len(BLOWS[scene]) - len(self.blows)
        problems = [f"{scene}: {missing} of its blows did not fall"] if missing else []
        if self.exit_code != 0 or "All is well" not in self.told:
            problems.append(f"{scene} ended with {self.exit_code}:\n{self.told}")
        return problems


def play(project: Project, scene: str, engine: str = "") -> Played:
    """Play a scene in containers, with its blows; return when it is over. `engine`: see `Blow`."""
    played = Played()
    waiting = list(BLOWS[scene])

    def look(line: str) -> None:
        for blow in list(waiting):
            pattern, strike = blow
            if (found := pattern.search(line)) is not None:
                waiting.remove(blow)
                played.blows.append(strike(project, found, engine))

    played.exit_code, played.told = project.follow(
        f"demo-{engine}" if engine else "demo", "--scene", scene, on_line=look
    )
    return played
