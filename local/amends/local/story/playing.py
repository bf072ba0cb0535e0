"""Plays a scene: on servers, with parts and services of its own, or with those that run elsewhere (in containers)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from amends.kafka.deletion import delete_groups, delete_topics
from amends.kafka.settings import KafkaSettings
from amends.local.children import make_folder, remove_folder
from amends.local.errors import ServerUnavailable
from amends.local.parts import PREFIX, Parts, environment, make_topics
from amends.local.servers import Servers
from amends.local.story.director import Ending, Play
from amends.local.story.remotes import PAYMENTS, SHIPPING, WAREHOUSE, Remotes, remotes
from amends.local.story.scenes import Scene
from amends.local.story.timeline import Timeline
from amends.local.story.tools import LANES
from amends.local.story.world import Addresses

# Twenty agents that start at once on a small machine wait longer for one another than agents otherwise do.
PATIENCE = {"AMENDS_PRODUCER__STANDING_WITHIN_MS": "30000", "AMENDS_PRODUCER__CONFIRM_WITHIN_MS": "30000"}


def play(scene: Scene, servers: Servers, timeline: Timeline, *, replication_factor: int = 1) -> Ending:
    """Play one scene on these servers, under a topic prefix of its own. Leaves no process and no file behind."""
    folder = make_folder("demo")
    run_id = _run_id()
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
            given = {**environment(settings, servers.redis.url), **_names_of_its_own(settings)}
            parts = Parts({**given, **outside.environment, **PATIENCE}, folder)
            return Play(scene, settings, outside, parts, timeline, run_id).run()
    finally:
        remove_folder(folder)
        if servers.kafka.kind == "given":
            _clear_up(settings, timeline)


def _names_of_its_own(settings: KafkaSettings) -> dict[str, str]:
    """The group, the transactional ids and the Redis keys of this run: on servers that others use, too."""
    prefix = settings.topic_prefix
    return {"AMENDS_PROCESSOR__APPLICATION_ID": prefix, "AMENDS_COMPENSATOR__REGISTRY_PREFIX": prefix}


def _clear_up(settings: KafkaSettings, timeline: Timeline) -> None:
    """Take away what the run made on a Kafka that stays, or name it. Its Redis keys go when their time is over."""
    left = [*delete_topics(settings), *delete_groups(settings, settings.topic_prefix)]
    told = f"still on the Kafka you gave, delete them there: {', '.join(left)}" if left else ""
    timeline.say("demo", told or f"deleted the topics and groups of this run, {settings.topic_prefix}.*")


def play_attached(scene: Scene, settings: KafkaSettings, timeline: Timeline) -> Ending:
    """Play one scene with processors, compensators and services that run elsewhere; only the agents are started here.

    Who is to die there is named, not killed. Raises ServerUnavailable if a lane or an address is missing.
    """
    missing = [lane for lane in LANES if lane not in settings.lanes]
    if missing:
        raise ServerUnavailable(
            f"the scenes' tools are undone on the lanes {', '.join(LANES)}; AMENDS_KAFKA__LANES lacks "
            f"{', '.join(missing)}"
        )
    outside = Remotes(_addresses(os.environ))
    folder = make_folder("demo")
    try:
        ours = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
        given = {**PATIENCE, **ours, "AMENDS_KAFKA__BOOTSTRAP_SERVERS": settings.bootstrap_servers}
        parts = Parts({**given, **outside.environment}, folder)
        return Play(scene, settings, outside, parts, timeline, _run_id(), attached=True).run()
    finally:
        remove_folder(folder)


def _addresses(env: Mapping[str, str]) -> Addresses:
    missing = [variable for variable in (PAYMENTS, WAREHOUSE, SHIPPING) if not env.get(variable)]
    if missing:
        raise ServerUnavailable(f"where the scenes' services are is not set: {', '.join(missing)}, each a base URL")
    return Addresses(payments=env[PAYMENTS], warehouse=env[WAREHOUSE], shipping=env[SHIPPING])


def _run_id() -> str:
    return uuid.uuid4().hex[:8]
