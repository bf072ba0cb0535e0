"""After which faults an engine joins its group again."""

from __future__ import annotations

import pytest

from amends.kafka.errors import CheckpointFenced, GroupRefused, OwnershipLost, TopicsWrong
from amends.processors.engine import EngineError
from amends.processors.rejoining import STARTS_WITHOUT_CHECKPOINT_MAX, WAIT_MAX_MS, Rejoining


def test_a_lost_partition_is_joined_again_at_once_and_ever_later_without_progress() -> None:
    rejoining = Rejoining(None, "processors")
    waits = [rejoining.after(OwnershipLost("gone"), kept=0) for _ in range(8)]
    assert waits[0] < 1_000
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_MAX_MS


def test_a_checkpoint_in_between_begins_the_count_anew() -> None:
    rejoining = Rejoining(None, "processors")
    waits = {rejoining.after(CheckpointFenced("refused"), kept=n) for n in range(1, 100)}
    assert len(waits) == 1


def test_starts_without_any_progress_end_with_the_last_reason() -> None:
    rejoining = Rejoining(None, "processors")
    for _ in range(STARTS_WITHOUT_CHECKPOINT_MAX):
        rejoining.after(CheckpointFenced("refused"), kept=0)
    with pytest.raises(EngineError, match="refused"):
        rejoining.after(CheckpointFenced("refused"), kept=0)


def test_two_processes_with_one_instance_id_are_told_apart_by_a_person() -> None:
    words = "Static consumer fenced by other consumer with same group.instance.id"
    with pytest.raises(EngineError, match="processor-1"):
        Rejoining("processor-1", "processors").after(OwnershipLost(words), kept=0)


def test_wrong_topics_end_the_engine() -> None:
    with pytest.raises(EngineError, match="no such topic"):
        Rejoining(None, "processors").after(TopicsWrong(["no such topic"]), kept=0)


def test_a_group_of_another_engine_is_not_joined_again_and_the_words_say_what_to_change() -> None:
    with pytest.raises(EngineError, match="group processors has members of another engine") as refused:
        Rejoining(None, "processors").after(GroupRefused("Broker: Inconsistent group protocol"), kept=0)
    assert refused.value.exit_code == 78
    assert "AMENDS_PROCESSOR__ENGINE" in str(refused.value)
