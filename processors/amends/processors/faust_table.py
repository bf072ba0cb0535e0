"""The one table of the Faust engine. Its contents are the folds; its changelog is what Faust writes of them.

Faust gives it its life: the partitions of the ledger and of the changelog come and go together, and when they have
come, nothing is folded before the table says that it has its state. That state is not read by Faust: it recovers 12,000
keys a second, and keeps of each key the record that stands last, which is not always the one that counts
(`faust_changelog`). So the table says, as one that keeps its data on disk would, that it has everything up to the
changelog's end, and reads it by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NoReturn

import faust
from faust.stores.base import Store
from faust.types import TP, EventT

from amends.processors.faust_changelog import Mark

Ends = Callable[[frozenset[int]], Awaitable[dict[int, int]]]
Take = Callable[[frozenset[int]], Awaitable[None]]

NO_FILES = "the state of amends has no files: the changelog is its only copy"
ONLY_THE_FOLD = "the state of amends is written by its fold alone"


class FoldStore(Store[bytes, bytes]):
    """Where Faust looks for the table's data. There is nothing to see: a fold is no mapping, and only it writes."""

    def __post_init__(self) -> None:
        self.ends: dict[int, int] = {}

    def persisted_offset(self, tp: TP) -> int | None:
        """The changelog is read up to its end when the partition is taken over; Faust has nothing to do before it."""
        end = self.ends.get(tp.partition)
        return None if end is None else end - 1

    def backup_partition(self, tp: TP | int, flush: bool = True, purge: bool = False, keep: int = 1) -> NoReturn:
        raise NotImplementedError(NO_FILES)

    def restore_backup(self, tp: TP | int, latest: bool = True, backup_id: int = 0) -> NoReturn:
        raise NotImplementedError(NO_FILES)

    async def need_active_standby_for(self, tp: TP) -> bool:
        return False

    def apply_changelog_batch(
        self, batch: Iterable[EventT[Any]], to_key: Callable[[Any], Any], to_value: Callable[[Any], Any]
    ) -> None:
        """What was written between two looks at the end is read with the rest."""

    def reset_state(self) -> None:
        self.ends.clear()

    def __getitem__(self, key: bytes) -> bytes:
        raise KeyError(key)

    def __setitem__(self, key: bytes, value: bytes) -> NoReturn:
        raise TypeError(ONLY_THE_FOLD)

    def __delitem__(self, key: bytes) -> NoReturn:
        raise TypeError(ONLY_THE_FOLD)

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def __len__(self) -> int:
        return 0


class StateTable(faust.Table[bytes, bytes]):
    """The table. `ends` and `take` are the engine's: where the changelog ends, and becoming the owner of partitions."""

    ends: Ends
    take: Take

    def _new_store(self) -> FoldStore:
        self.folds = FoldStore("memory://", self.app, self, table_name=self.name, loop=self.loop)
        return self.folds

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        await super().on_rebalance(assigned, revoked, newly_assigned, generation_id)
        self.folds.ends = await self.ends(self._partitions(assigned))

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        """Nothing of the ledger is given to the agent before this returns."""
        await super().on_recovery_completed(active_tps, standby_tps)
        await self.take(self._partitions(active_tps))

    async def write(self, partition: int, key: bytes, value: bytes | None, mark: Mark) -> Awaitable[Any]:
        """Hand a record of the changelog to the client; the result is awaited for the broker's acknowledgement.

        Raises ProducerSendError, here or when it is awaited.
        """
        self._sensor_on_set(self, key, value)
        return await self.changelog_topic.send(
            key=key,
            value=value,
            partition=partition,
            headers=mark.headers(),
            key_serializer="raw",
            value_serializer="raw",
            force=True,
        )

    def _partitions(self, places: Iterable[TP]) -> frozenset[int]:
        name = self.changelog_topic.get_topic_name()
        return frozenset(place.partition for place in places if place.topic == name)


def state_table(app: faust.App, name: str, changelog: str, partitions: int, ends: Ends, take: Take) -> StateTable:
    """Return the table, known to the app. Its changelog is the topic of that name, which is there."""
    topic = app.topic(
        changelog,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=partitions,
        internal=True,
        allow_empty=True,
    )
    table = app.Table(
        name,
        partitions=partitions,
        help="the state of the workflows",
        key_type=bytes,
        value_type=bytes,
        changelog_topic=topic,
    )
    assert isinstance(table, StateTable), "the app was made with another table class"
    table.ends, table.take = ends, take
    return table
