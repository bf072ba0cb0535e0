"""This process's schema registry: learns the ids of our records, and asks what the ids of others mean.

A registry that is away stops nothing. Without its ids records are written in single-object encoding, which every reader
takes, and a thread asks for them until it has them. Only a start is refused, and only by a registry that answers: that
it does not know us, or not our schemas.

An id that is not known is asked for by whoever reads it. The registry has a bounded time to answer, once for an outage:
what comes meanwhile is unreadable at once. A process that has not even learned its own ids can't tell a stranger's
record from its fleet's; one that must not take the one for the other is ended (`gives_up`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from amends.kafka.errors import SettingsWrong
from amends.kafka.registering import SchemasRefused, ids_of, missing_words, problem_words, register, subject_of
from amends.kafka.schema_registry_answers import (
    NoSchemaRegistry,
    SchemaRegistryAway,
    SchemaRegistryFault,
    SchemaRegistryRefused,
)
from amends.kafka.schema_registry_client import SchemaRegistryClient
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.schemas.codec import ON_TOPICS, schema_of
from amends.schemas.framing import Framing, frame

log = logging.getLogger("amends.schema_registry")

PATIENCE_MS = 1_000
"""How long anything but a processor waits for what an id means: a loop or a person waits with it."""

LATE_MS = 300
"""A registry of several servers may know an id here and not yet there: one that is not known is asked for twice."""

UNTOLD = (SchemaRegistryAway, SchemaRegistryRefused, NoSchemaRegistry)
"""It did not say what an id means, nor that there is none. Of these a page of a gateway in its place is one."""

PAUSE_MS = 250
ABSENT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SchemaRegistryState:
    """How it stands with the registry. `words`: what is wrong, "" if nothing is."""

    known: bool  # our ids: records are framed
    words: str
    failures: int  # requests that failed since the start


class SchemaRegistry:
    """Keeps what is known of the registry of `settings`, in `framing`.

    Args:
        unknown_within_ms: how long a look-up waits for a registry that is away.
        gives_up: called with words when that time is over and not even our own ids are known.
    """

    def __init__(
        self,
        settings: SchemaRegistrySettings,
        *,
        unknown_within_ms: int = PATIENCE_MS,
        gives_up: Callable[[str], object] | None = None,
    ) -> None:
        self._settings = settings
        self._unknown_within_ms = unknown_within_ms
        self._gives_up = gives_up
        self.framing = Framing(self.look_up)
        self._own: dict[int, Mapping[str, Any]] = {}
        self._words = ""
        self._failures = 0
        self._begin()

    def begin_again(self) -> None:
        """Begin anew in a child that was forked: threads, locks and connections are the parent's."""
        was_learning = self._thread is not None and not self.framing.frames
        self._begin()
        if was_learning:
            self._learn_later()

    def _begin(self) -> None:
        self._stopped = threading.Event()
        self._asking = threading.Lock()
        self._asks: SchemaRegistryClient | None = None
        self._absent: dict[int, float] = {}
        self._is_out = False  # away for longer than a look-up waits
        self._ask_again_ms = 0.0
        self._asked_twice_ms = -1e9
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> SchemaRegistryState:
        return SchemaRegistryState(bool(self.framing.frames), self._words, self._failures)

    def start(self) -> Self:
        """Learn the ids of our records, for a bounded time; go on in the background where the registry is away.

        Raises:
            SettingsWrong, SchemaRegistryRefused: it answers, and something must be changed before we can start.
        """
        try:
            self._learn(self._settings.start_within_ms)
        except SchemaRegistryAway as error:
            self._failed(error)
            log.warning(
                "the schema registry is away (%s): records are written in single-object encoding, which every reader "
                "takes, until it answers",
                error,
            )
            self._learn_later()
        except SettingsWrong:
            raise
        except SchemaRegistryFault as error:
            raise SchemasRefused(str(error)) from error
        return self

    def stop(self) -> None:
        """End what is waited for. Twice is harmless."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def try_learn(self, within_ms: int = PATIENCE_MS) -> str:
        """Learn the ids of our records once; return why they are not known, "" if they are. Raises nothing."""
        if not self.framing.frames:
            try:
                self._learn(within_ms)
            except (SchemaRegistryFault, SettingsWrong) as error:
                self._failed(error)
        return self._words

    # --- our own ids ------------------------------------------------------------------------------------------------

    def _learn(self, within_ms: int) -> None:
        with SchemaRegistryClient(self._settings).within(within_ms) as client:
            ids = ids_of(client)
            missing = [record for record in ON_TOPICS if record not in ids]
            if missing and self._settings.auto_register:
                wrong = [subject for subject in register(client) if subject.problems]
                if wrong:
                    raise SchemasRefused(f"the schema registry: {problem_words(wrong)}")
                ids = ids_of(client)
                missing = [record for record in ON_TOPICS if record not in ids]
            if missing:
                raise SchemasRefused(missing_words(subject_of(record) for record in missing))
        self._own = {number: schema_of(record) for record, number in ids.items()}
        self.framing.frames = {record: frame(number) for record, number in ids.items()}
        self._words = ""
        log.info("the schema registry has our schemas; records are written in its framing")

    def _learn_later(self) -> None:
        self._thread = threading.Thread(target=self._keep_learning, name="amends-schema-registry", daemon=True)
        self._thread.start()

    def _keep_learning(self) -> None:
        while not self._stopped.wait(self._settings.again_ms / 1000):
            before = self._words
            words = self.try_learn(self._settings.start_within_ms)
            if not words:
                return
            if words != before:
                log.warning("the schema registry: %s", words)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._words = str(error)

    # --- ids of others ----------------------------------------------------------------------------------------------

    def look_up(self, number: int) -> Mapping[str, Any] | None:
        """Return the schema of an id; None where the registry has no such id.

        Raises:
            SchemaRegistryFault: it could not be asked, within the time given.
        """
        own = self._own.get(number)
        if own is not None:
            return own
        with self._asking:
            if self._absent.get(number, 0.0) > _monotonic_ms():
                return None
            try:
                found = self._waited_for(number)
            except UNTOLD as error:
                self._give_up(number, error)
                raise
            finally:
                if self._asks is not None:
                    self._asks.close()  # ids are asked for seldom
            return None if found is None else _avro(number, found)

    def _waited_for(self, number: int) -> dict[str, Any] | None:
        """Ask until there is an answer. In an outage that was waited out once: now and then, and only once."""
        until_ms = _monotonic_ms() + self._unknown_within_ms
        while True:
            if self._is_out and _monotonic_ms() < self._ask_again_ms:
                raise SchemaRegistryAway(self._words)
            try:
                found = self._asked(number)
            except UNTOLD as error:
                if not self._failures or self._words != str(error):
                    log.warning("schema %d of a record can't be had: %s", number, error)
                self._failed(error)
                left_ms = until_ms - _monotonic_ms()
                if self._is_out or left_ms <= 0 or self._stopped.wait(min(PAUSE_MS, left_ms) / 1000):
                    self._is_out = True
                    self._ask_again_ms = _monotonic_ms() + self._settings.again_ms
                    raise
            else:
                self._is_out = False
                return found

    def _asked(self, number: int) -> dict[str, Any] | None:
        if self._asks is None:
            self._asks = SchemaRegistryClient(self._settings)
        found = self._asks.schema(number)
        if found is None and _monotonic_ms() > self._asked_twice_ms + 10 * LATE_MS:
            self._asked_twice_ms = _monotonic_ms()  # not for each of many: a flood of junk must not slow the readers
            self._stopped.wait(LATE_MS / 1000)
            found = self._asks.schema(number)
        if found is None:
            if len(self._absent) >= ABSENT_MAX:
                self._absent.clear()
            self._absent[number] = _monotonic_ms() + self._settings.again_ms
        return found

    def _give_up(self, number: int, error: SchemaRegistryFault) -> None:
        if self._gives_up is not None and not self.framing.frames and not self._stopped.is_set():
            self._gives_up(
                f"schema {number} of a record can't be had, and the schema registry has not answered since the start: "
                f"{error}. Nothing is lost; start again when it answers"
            )


def _avro(number: int, found: dict[str, Any]) -> Mapping[str, Any]:
    if found.get("schemaType", "AVRO") != "AVRO":
        raise ValueError(f"it is {found['schemaType']}, not Avro")
    if found.get("references"):
        raise ValueError("it refers to other subjects, and records of amends stand alone")
    schema = json.loads(found["schema"])
    if not isinstance(schema, dict):
        raise TypeError(f"schema {number} is no record")
    return schema


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
