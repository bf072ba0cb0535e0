"""What a compensator checks and opens before it serves: handlers, lanes, the registry, processes.

Whatever is wrong is an error here, in words that say what to change, and not at the first undo.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable

from amends.compensators.inventory import plain_handlers
from amends.compensators.processes import ModulesBroken, ProcessPool
from amends.compensators.redis_registry import RedisRegistry, connect, connect_cluster
from amends.compensators.registry import NoRegistry, Registry
from amends.compensators.settings import CompensatorSettings
from amends.kafka.errors import SettingsWrong
from amends.kafka.settings import KafkaSettings
from amends.tools.registry import HandlerRegistry

log = logging.getLogger(__name__)

_SCHEMES = ("redis://", "rediss://", "unix://")


def loaded_tools(settings: CompensatorSettings) -> HandlerRegistry:
    """Import the modules. Raises ContractError, ModulesBroken, and whatever else a module raises."""
    tools = HandlerRegistry()
    for module in settings.modules:
        if module.startswith("."):
            raise ModulesBroken(_not_imported(module, "it begins with a dot"))
        try:
            tools.load([module])
        except ImportError as error:
            raise ModulesBroken(_not_imported(module, str(error))) from error
    return tools


def _not_imported(module: str, why: str) -> str:
    return (
        f"the module {module} can't be imported: {why}. A MODULE is a dotted name, such as shop.payments, that Python "
        f"finds from {os.getcwd()} or by PYTHONPATH"
    )


def lanes_to_serve(kafka: KafkaSettings, settings: CompensatorSettings, tools: HandlerRegistry) -> tuple[str, ...]:
    """Return the lanes. Raises SettingsWrong where one does not exist or nothing is undone on it."""
    lanes = settings.lanes or tools.lanes
    modules = ", ".join(settings.modules) or "none"
    if not lanes:
        raise SettingsWrong(
            f"no loaded tool has an undo (modules: {modules}): name the modules that declare them, "
            "as arguments or in AMENDS_COMPENSATOR__MODULES"
        )
    for lane in lanes:
        if lane not in kafka.lanes:
            raise SettingsWrong(
                f"the lane {lane!r} does not exist: lanes are {', '.join(kafka.lanes)} (AMENDS_KAFKA__LANES)"
            )
        if lane not in tools.lanes:
            raise SettingsWrong(
                f"no loaded tool is undone on the lane {lane!r} (modules: {modules}; their lanes: "
                f"{', '.join(tools.lanes) or 'none'}): name the modules that declare its tools"
            )
    return lanes


@contextlib.asynccontextmanager
async def opened_registry(settings: CompensatorSettings, on_away: Callable[[], None]) -> AsyncIterator[Registry]:
    """Open the registry. Raises SettingsWrong, RegistryUnusable; one that is out of reach is a warning."""
    url = settings.redis_url.get_secret_value() if settings.redis_url is not None else ""
    if not url:
        yield NoRegistry()
        return
    try:
        if not url.startswith(_SCHEMES):  # the client takes `redis:6379` for a port of this host
            raise ValueError(url)
        client = connect_cluster(url) if settings.redis_cluster else connect(url)
    except ValueError:  # whose words may hold a part of the password
        raise SettingsWrong(
            "AMENDS_COMPENSATOR__REDIS_URL is no URL of a Redis: redis://HOST:PORT/0, rediss://… or unix://…, with "
            "what is special in a password written as %XX"
        ) from None
    registry = RedisRegistry(client, prefix=settings.registry_prefix, on_away=on_away)
    try:
        for warning in await registry.check() if settings.redis_check == "read" else ():
            log.warning("%s", warning)
        yield registry
    finally:
        await registry.close()
        await client.aclose()


@contextlib.asynccontextmanager
async def started_processes(settings: CompensatorSettings, tools: HandlerRegistry) -> AsyncIterator[ProcessPool | None]:
    """Start the pool where a plain function needs it. Raises SettingsWrong, ModulesBroken."""
    plain = plain_handlers(tools)
    if not plain:
        yield None
        return
    if not settings.processes:
        raise SettingsWrong(
            f"{next(iter(plain.values()))} is a plain function and needs a process: set "
            "AMENDS_COMPENSATOR__PROCESSES to 1 or more, or make it a coroutine"
        )
    pool = ProcessPool(settings.modules, settings.processes, plain)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
