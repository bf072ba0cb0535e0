"""Everything in containers, for real: `python -m tests.containers`, or `make test-docker`.

The image is built and looked at; the compose file is brought up; every scene of the demo is played in it while its
containers are killed; it is taken down. Exits with 1 if anything went wrong or is left. Where no Docker answers, root
has one for the length of the run; where no registry of images can be reached, the images are made of packages. Told to
end, it takes down what it started.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from tests.containers.engine import Docker, DockerMissing, docker
from tests.containers.images import OURS, base_images, build_ours, have_images
from tests.containers.project import Project, project
from tests.containers.scenes import BLOWS, play
from tests.told_to_end import interrupted_when_told_to_end

INTERRUPTED = 130
AT_ONCE_S = 30
BUILD_TOOLS = ("gcc", "cc", "make", "git")
STOPS = ("processor-1", "processor-faust-1", "compensator-1", "warehouse")
FAUST = "faust"
SCENES_OF_FAUST = ("killed", "clean")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("--scene", action="append", choices=sorted(BLOWS), help="only this one; may be given again")
    parser.add_argument("--told", action="store_true", help="print the time line of each scene")
    options = parser.parse_args(arguments)
    try:
        with interrupted_when_told_to_end(), docker() as engine:
            problems = _run(engine, options.scene or list(BLOWS), told=options.told)
    except DockerMissing as missing:
        say(f"not run: {missing}")
        return 2
    except KeyboardInterrupt:
        say("told to end: all is taken down")
        return INTERRUPTED
    for problem in problems:
        say(f"WRONG  {problem}")
    say("wrong" if problems else "all is well")
    return 1 if problems else 0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def _run(engine: Docker, scenes: Sequence[str], *, told: bool) -> list[str]:
    for image in have_images(engine):
        say(f"{image} is made of packages: no registry of images gave it")
    try:
        build_ours(engine)
        return [*_image(engine), *_up(engine, scenes, told=told)]
    finally:
        for tag in OURS.values():
            engine.run("image", "rm", "--force", tag, check=False)


def _up(engine: Docker, scenes: Sequence[str], *, told: bool) -> list[str]:
    problems: list[str] = []
    with project(engine, [FAUST]) as up:
        say(f"up and healthy: {', '.join(up.running())}")
        for scene in scenes:
            problems += _scene(up, scene, told=told)
        for scene in (scene for scene in SCENES_OF_FAUST if scene in scenes):
            problems += _scene(up, scene, FAUST, told=told)
        problems += list(_console(up))
        problems += list(_stops(up))
    if left := up.left():
        problems.append(f"left after `down`: {', '.join(left)}")
    return problems


def _scene(up: Project, scene: str, engine: str = "", *, told: bool) -> list[str]:
    begun_s = time.monotonic()
    played = play(up, scene, engine)
    if told:
        print(played.told)
    problems = played.wrong(scene)
    name = f"{scene} on {engine}" if engine else scene
    word = "wrong" if problems else "well"
    say(f"scene {name}: {word} after {time.monotonic() - begun_s:.0f} s; {'; '.join(played.blows)}")
    up.wait_until_healthy()
    return problems


def _image(engine: Docker) -> Iterator[str]:
    """Look at the image alone: how large, who it is, what is in it, what it says without settings."""
    base = _size(engine, base_images()["python"])
    for tag in OURS.values():
        say(f"{tag}: {_size(engine, tag) / 1e6:.0f} MB, of which ours {(_size(engine, tag) - base) / 1e6:.0f} MB")
    who = engine.run("run", "--rm", "--entrypoint", "id", OURS["amends"], "-u").stdout.strip()
    if who != "10001":
        yield f"the image runs as {who}"
    for tool in BUILD_TOOLS:
        found = engine.run("run", "--rm", "--entrypoint", "sh", OURS["amends"], "-c", f"command -v {tool}", check=False)
        if found.returncode == 0:
            yield f"there is a {tool} in the image"
    for command in (["processor"], ["compensator", "shop"], ["topics", "create"]):
        begun_s = time.monotonic()
        run = engine.run("run", "--rm", OURS["amends"], *command, check=False)
        took_s = time.monotonic() - begun_s
        if run.returncode != 2 or "AMENDS_KAFKA__BOOTSTRAP_SERVERS is not set" not in run.stderr or took_s > AT_ONCE_S:
            name = " ".join(command)
            yield f"without settings `amends {name}` ended with {run.returncode} in {took_s:.0f} s: {run.stderr}"


def _size(engine: Docker, image: str) -> int:
    return int(engine.run("image", "inspect", "--format", "{{.Size}}", image).stdout)


def _console(up: Project) -> Iterator[str]:
    """Ask as a person would."""
    for words in (["topics", "check"], ["workflows", "list", "--limit", "1"]):
        try:
            up.compose("run", "--rm", "-T", "console", *words)
        except RuntimeError as failed:
            yield str(failed)


def _stops(up: Project) -> Iterator[str]:
    """Stop what runs as process 1 and see that it ended by itself, well."""
    for service in STOPS:
        up.compose("stop", service)
        code = up.state(service)["ExitCode"]
        if code != 0:
            yield f"{service} ended with {code} on SIGTERM:\n{up.compose('logs', '--tail=15', service)}"


if __name__ == "__main__":
    sys.exit(main())
