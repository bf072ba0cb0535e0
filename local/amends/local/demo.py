"""`amends demo`: the main job in front of your eyes."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Annotated

import typer

from amends.kafka.servers import kafka_of_settings
from amends.local.errors import ServerUnavailable
from amends.local.servers import Servers, servers
from amends.local.story.director import Ending
from amends.local.story.playing import play, play_attached
from amends.local.story.scenes import SCENES, Scene, killing_scene
from amends.local.story.timeline import Timeline
from amends.local.story.world import Thing

app = typer.Typer(help="An agent is killed inside a call, and everything it did is undone.", add_completion=False)

LISTED_MAX = 12
NAMES = ", ".join(SCENES)
DEFAULT = "killed"


@app.callback(invoke_without_command=True)
def demo(
    scene: Annotated[str | None, typer.Option(help=f"One of: {NAMES}.", show_default=DEFAULT)] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="In place of a scene: let chance, begun from this number, say who is killed where."),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Kafka to use, in place of one started here.")
    ] = None,
    redis: Annotated[str | None, typer.Option(help="URL of a Redis to use, in place of one started here.")] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use the embedded servers even where others are there.")
    ] = False,
    attach: Annotated[
        bool,
        typer.Option(
            "--attach",
            help="Play with processors, compensators and services that run elsewhere, on the Kafka of the settings; "
            "STORY_PAYMENTS_URL, STORY_WAREHOUSE_URL and STORY_SHIPPING_URL say where the services are.",
        ),
    ] = False,
) -> None:
    """Play a scene of the order-fulfilment story. Exits 1 if anything is left or was done twice, 2 if it can't be
    played.
    """
    if scene is not None and seed is not None:
        raise typer.BadParameter("chance chooses the scene from a seed: give one of --scene and --seed")
    if scene is not None and scene not in SCENES:
        raise typer.BadParameter(f"there is no scene {scene!r}; there are {NAMES}", param_hint="--scene")
    if attach and (redis is not None or embedded):
        raise typer.BadParameter("--attach starts no server and needs no Redis: leave out --redis and --embedded")
    # A shell that starts a job in the background has it ignore SIGINT, and all that the demo starts would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        chosen = SCENES[scene or DEFAULT] if seed is None else killing_scene(seed)
        problems = (
            run_attached(chosen, kafka=kafka) if attach else run(chosen, kafka=kafka, redis=redis, embedded=embedded)
        )
    except ServerUnavailable as missing:
        typer.echo(str(missing), err=True)
        raise typer.Exit(2) from missing
    if problems:
        raise typer.Exit(1)


def run(scene: Scene, *, kafka: str | None = None, redis: str | None = None, embedded: bool = False) -> list[str]:
    """Start the servers, play, tell; return what is wrong."""
    timeline = Timeline(several=scene.orders > 1)
    timeline.line(f"Scene {scene.name}. {scene.title}\n")
    with servers(kafka=kafka, redis=redis, embedded=embedded) as both:
        timeline.say("demo", str(both))
        _warn(both, timeline)
        ending = play(scene, both, timeline)
    tell(ending, timeline)
    return ending.problems


def run_attached(scene: Scene, *, kafka: str | None = None) -> list[str]:
    """Play with what runs elsewhere, tell; return what is wrong. Raises SettingsWrong."""
    timeline = Timeline(several=scene.orders > 1)
    timeline.line(f"Scene {scene.name}. {scene.title}\n")
    settings = kafka_of_settings(kafka)
    timeline.say("demo", f"Kafka at {settings.bootstrap_servers}, topics {settings.topic_prefix}.*")
    ending = play_attached(scene, settings, timeline)
    tell(ending, timeline)
    return ending.problems


def _warn(both: Servers, timeline: Timeline) -> None:
    if both.kafka.embedded:
        timeline.say(
            "demo",
            "the embedded broker keeps all in memory and hides nothing of aborted transactions: not for production",
        )


def tell(ending: Ending, timeline: Timeline) -> None:
    """Print the outside world before and after, what a person must decide, and the verdict."""
    timeline.heading("The outside world when the agents had ended, as the services tell it:")
    _list(ending.before, timeline)
    timeline.heading("The outside world now, as the services tell it:")
    _list(ending.after, timeline)
    for incident in ending.narrator.incidents.values():
        timeline.heading(f"Incident, {incident.state.value.lower()}: {incident.summary}")
        timeline.line(f"  {incident.detail}".replace("\n", "\n  "))
    for letter in ending.narrator.dead_letters:
        timeline.heading(
            f"Dead letter: {letter.tool_name} of {letter.workflow_id}, given up after {letter.attempts_spent} attempts"
        )
        timeline.line(f"  {letter.text}".replace("\n", "\n  "))
    timeline.heading("")
    for problem in ending.problems:
        timeline.line(f"WRONG  {problem}")
    if not ending.problems:
        timeline.line("All is well: nothing is left that should be gone, nothing was done or undone twice.")


def _list(things: list[Thing], timeline: Timeline) -> None:
    if len(things) <= LISTED_MAX:
        for thing in things:
            timeline.line(f"  {thing}")
        if not things:
            timeline.line("  nothing")
        return
    counts = Counter((thing.kind, min(thing.undone, 2)) for thing in things)
    for kind in dict.fromkeys(thing.kind for thing in things):
        standing, undone, twice = (counts[kind, times] for times in range(3))
        timeline.line(f"  {kind:12} {standing:3} stand   {undone:3} undone   {twice:3} undone more than once")
