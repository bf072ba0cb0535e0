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
from amends.compensators.redis_address import address_of
from amends.compensators.redis_client import client_of, close_client
from amends.compensators.redis_registry import RedisRegistry
from amends.compensators.registry import NoRegistry, Registry
from amends.compensators.settings import CompensatorSettings
from amends.kafka.errors import SettingsWrong
from amends.kafka.settings import KafkaSettings
from amends.tools.registry import HandlerRegistry

log = logging.getLogger(__name__)


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
    address = address_of(settings)
    if address is None:
        yield NoRegistry()
        return
    client = client_of(address)
    registry = RedisRegistry(client, prefix=settings.registry_prefix, on_away=on_away)
    try:
        for warning in await registry.check(reads_settings=settings.redis_check == "read"):
            log.warning("%s", warning)
        yield registry
    finally:
        await registry.close()
        await close_client(client)


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
