"""A change of engine, and the engine faust, on a broker that refuses what nobody granted."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from tests.integration.kafka_parts import eventually
from tests.security.acls import give_in_place_of, grant_all, restore, withdraw
from tests.security.parts import await_undone, compensator, fail_a_workflow, faust_process, faust_worker, processor
from tests.security.secured import Secured

from amends.kafka.rights import Operation, Part, Right, rights_of, rights_to_change_engine
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.processors.engine import RightMissingError
from amends.processors.engine_change import refuse_other_engine
from amends.processors.start import check_start
from amends.schemas.topics import FAUST, TRANSACTIONS

pytest.importorskip("faust")
pytestmark = [pytest.mark.kafka]

WAY = "SCRAM-SHA-512"
WITHIN_S = 20.0
REFUSED = 78


class Rights:
    """The rights of the processor of a prefix, for each engine. Topics of both engines are there."""

    def __init__(self, secured: Secured, prefix: str, engine: str) -> None:
        self.secured, self.prefix = secured, prefix
        grant_all(secured, prefix, engine)
        create_topics(secured.setup_settings(prefix))
        create_topics(secured.setup_settings(prefix), FAUST)
        self.has = self.of(engine)

    def settings(self, part: Part) -> KafkaSettings:
        return self.secured.settings(WAY, part.value, self.prefix)

    def of(self, engine: str) -> list[Right]:
        kafka = self.secured.setup_settings(self.prefix)
        return list(rights_of(Part.PROCESSOR, kafka, application_id=self.prefix, engine=engine))

    def to_change_to(self, engine: str) -> list[Right]:
        kafka = self.secured.setup_settings(self.prefix)
        return list(rights_to_change_engine(kafka, application_id=self.prefix, engine=engine))

    def only(self, rights: list[Right]) -> None:
        """Give the processor these, and none else."""
        give_in_place_of(self.secured, Part.PROCESSOR, self.has, rights)
        self.has = rights


def prefix() -> str:
    return f"c{uuid.uuid4().hex[:8]}"


def test_the_documented_rights_are_enough_to_change_the_engine_there_and_back(secured: Secured, tmp_path: Path) -> None:
    rights = Rights(secured, prefix(), TRANSACTIONS)
    own, agents = rights.settings(Part.PROCESSOR), rights.settings(Part.AGENTS)
    first, second, third = (f"w-{uuid.uuid4().hex[:8]}" for _ in range(3))
    with processor(own) as running:
        fail_a_workflow(agents, first)
        eventually(lambda: running.engine.progress.emitted)  # nobody undoes it yet
    with compensator(rights.settings(Part.COMPENSATOR)):
        rights.only(rights.of(FAUST) + rights.to_change_to(FAUST))
        with faust_worker(own, tmp_path, "--refold"):
            await_undone(first)
            fail_a_workflow(agents, second)
            await_undone(second)
        rights.only(rights.of(TRANSACTIONS) + rights.to_change_to(TRANSACTIONS))
        with processor(own, refold=True):
            fail_a_workflow(agents, third)
            await_undone(third)


@pytest.fixture(scope="module")
def kept(secured: Secured) -> Rights:
    """The default engine has a state; the processor has what the other engine and the change to it need."""
    rights = Rights(secured, prefix(), TRANSACTIONS)
    with processor(rights.settings(Part.PROCESSOR)) as running:
        fail_a_workflow(rights.settings(Part.AGENTS), "w")
        eventually(lambda: running.engine.progress.kept)
    rights.only(rights.of(FAUST) + rights.to_change_to(FAUST))
    return rights


@pytest.mark.parametrize(
    ("ends", "operation"),
    [("transactions-changelog", Operation.READ), ("transactions-changelog", Operation.WRITE), ("", Operation.DELETE)],
    ids=str,
)
def test_a_change_of_engine_without_one_of_its_rights_changes_nothing_and_names_it(
    kept: Rights, ends: str, operation: Operation
) -> None:
    rights = kept.to_change_to(FAUST)
    right = next(right for right in rights if right.name.endswith(ends or kept.prefix))
    withdraw(kept.secured, Part.PROCESSOR, right, operation)
    began_at = time.monotonic()
    try:
        with pytest.raises(RightMissingError) as raised:
            check_start(
                kept.settings(Part.PROCESSOR), refold=True, engine=FAUST, application_id=kept.prefix,
            )  # fmt: skip
    finally:
        restore(kept.secured, Part.PROCESSOR, right)
    assert time.monotonic() - began_at < WITHIN_S
    assert raised.value.exit_code == REFUSED
    assert f"{right.name}: {operation.value}" in str(raised.value)
    assert "amends acls --refold" in str(raised.value)
    refuse_other_engine(kept.secured.setup_settings(kept.prefix), TRANSACTIONS)  # its state is still the newest


@pytest.fixture(scope="module")
def faust_alone(secured: Secured) -> Rights:
    """The processor has what the engine faust needs, and nobody has folded the ledger."""
    return Rights(secured, prefix(), FAUST)


def test_the_engine_faust_without_a_right_on_its_changelog_refuses_to_start_and_names_it(faust_alone: Rights) -> None:
    right = next(right for right in faust_alone.has if right.name.endswith("faust-changelog"))
    withdraw(faust_alone.secured, Part.PROCESSOR, right, Operation.WRITE)
    try:
        with pytest.raises(RightMissingError, match=f"{right.name}: Write") as raised:
            check_start(
                faust_alone.settings(Part.PROCESSOR), refold=False, engine=FAUST, application_id=faust_alone.prefix
            )
    finally:
        restore(faust_alone.secured, Part.PROCESSOR, right)
    assert raised.value.exit_code == REFUSED


@pytest.mark.parametrize(("under_way", "ends", "operation"), [
    (False, "", Operation.READ), (True, "faust-changelog", Operation.WRITE),
], ids=["its group", "its changelog, withdrawn under way"])  # fmt: skip
def test_the_engine_faust_without_one_of_its_rights_ends_within_seconds_and_names_it(
    faust_alone: Rights, tmp_path: Path, under_way: bool, ends: str, operation: Operation
) -> None:
    right = next(right for right in faust_alone.has if right.name.endswith(ends or faust_alone.prefix))
    taken = False
    try:
        with faust_process(faust_alone.settings(Part.PROCESSOR), tmp_path) as (part, serves):
            if under_way:
                eventually(lambda: serves() or not part.child.alive, 90)
            withdraw(faust_alone.secured, Part.PROCESSOR, right, operation)
            taken = True
            if under_way:
                fail_a_workflow(faust_alone.settings(Part.AGENTS), f"w-{uuid.uuid4().hex[:8]}")
            began_at = time.monotonic()
            eventually(lambda: not part.child.alive, 90)
            assert time.monotonic() - began_at < WITHIN_S
            assert part.child.exit_code == REFUSED, part.last_words(30)
            said = part.last_words(30)
            assert right.name in said
            assert "amends acls" in said
    finally:
        if taken:
            restore(faust_alone.secured, Part.PROCESSOR, right)
