"""On a broker that refuses what nobody granted: the table of rights is enough, and each right in it is needed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.integration.kafka_parts import eventually
from tests.security.acls import grant_all, restore, withdraw
from tests.security.parts import await_undone, compensator, fail_a_workflow, processor, variables_of
from tests.security.secured import Secured
from tests.security.tools import LANE

from amends.console.application import run
from amends.kafka.errors import AccessRefused, TopicsWrong
from amends.kafka.rights import Operation, Part, Right, rights_of
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.kafka.turned_away import turned_away
from amends.processors.engine import RightMissingError
from amends.producers import workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.tools.errors import LedgerUnavailable

pytestmark = [pytest.mark.kafka]

WAY = "SCRAM-SHA-512"
PREFIX = f"r{uuid.uuid4().hex[:8]}"
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def granted(secured: Secured) -> Secured:
    """Every part has its rights on the topics of `PREFIX`, and they are made."""
    grant_all(secured, PREFIX)
    create_topics(secured.settings(WAY, "topics", PREFIX))
    return secured


def settings(secured: Secured, part: Part) -> KafkaSettings:
    return secured.settings(WAY, part.value, PREFIX)


def right_of(part: Part, name: str) -> Right:
    kafka, wanted = KafkaSettings(topic_prefix=PREFIX, lanes=(LANE,)), name.replace("P.", f"{PREFIX}.", 1)
    return next(right for right in rights_of(part, kafka, application_id=PREFIX) if right.name == wanted)


@pytest.fixture
def without(granted: Secured) -> Iterator[Callable[[Part, str, Operation], str]]:
    """Take a right away for the length of a test; return the name of what it is on."""
    with ExitStack() as stack:

        def take(part: Part, name: str, operation: Operation) -> str:
            right = right_of(part, name)
            stack.callback(restore, granted, part, right)
            withdraw(granted, part, right, operation)
            return right.name

        yield take


PROCESSOR_NEEDS = [
    ("P.ledger", Operation.READ), ("P.ledger", Operation.WRITE), ("P.ledger", Operation.DESCRIBE_CONFIGS),
    ("P.workflows", Operation.WRITE), ("P.incidents", Operation.WRITE), (f"P.undo.{LANE}", Operation.WRITE),
    (f"dlq.P.undo.{LANE}", Operation.WRITE), ("dlq.P.ledger", Operation.WRITE),
    ("P.processor-transactions-changelog", Operation.READ), ("P.processor-transactions-changelog", Operation.WRITE),
    (PREFIX, Operation.READ), (f"{PREFIX}-checkpoint-", Operation.WRITE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operation"), PROCESSOR_NEEDS, ids=lambda given: str(given).replace(PREFIX, "p"))
def test_a_processor_without_one_of_its_rights_ends_and_names_it(
    granted: Secured, without: Callable[[Part, str, Operation], str], name: str, operation: Operation
) -> None:
    named = without(Part.PROCESSOR, name, operation)
    began_at = time.monotonic()
    with pytest.raises(RightMissingError) as raised, processor(settings(granted, Part.PROCESSOR)) as running:
        eventually(lambda: running.ended or running.partitions)
    assert time.monotonic() - began_at < WITHIN_S
    assert named in str(raised.value)
    assert "amends acls" in str(raised.value)


COMPENSATOR_NEEDS = [
    ("P.ledger", Operation.READ), ("P.ledger", Operation.WRITE), (f"P.undo.{LANE}", Operation.READ),
    (f"dlq.P.undo.{LANE}", Operation.WRITE), (f"P.compensator.{LANE}", Operation.READ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operation"), COMPENSATOR_NEEDS, ids=str)
def test_a_compensator_without_one_of_its_rights_ends_and_names_it(
    granted: Secured, without: Callable[[Part, str, Operation], str], name: str, operation: Operation
) -> None:
    named = without(Part.COMPENSATOR, name, operation)
    with pytest.raises(AccessRefused) as raised, compensator(settings(granted, Part.COMPENSATOR)):
        pytest.fail("it started")
    assert named in str(raised.value)
    assert "amends acls" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "operation"),
    [("P.ledger", Operation.WRITE), ("P.ledger", Operation.READ), ("P.workflows", Operation.READ)],
    ids=str,
)
def test_an_agent_without_one_of_its_rights_calls_no_tool(
    granted: Secured, without: Callable[[Part, str, Operation], str], name: str, operation: Operation
) -> None:
    named = without(Part.AGENTS, name, operation)
    runtime = kafka_runtime(settings(granted, Part.AGENTS))
    began_at = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=f"{named}: {operation.value}"), workflow("w", runtime=runtime):
        pytest.fail("the block ran")
    runtime.close()
    assert time.monotonic() - began_at < WITHIN_S


def test_the_console_without_a_right_says_on_what(
    granted: Secured,
    without: Callable[[Part, str, Operation], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = without(Part.CONSOLE, "P.workflows", Operation.READ)
    without(Part.CONSOLE, "P.workflows", Operation.DESCRIBE_CONFIGS)
    for name, value in variables_of(settings(granted, Part.CONSOLE)).items():
        monkeypatch.setenv(name, value)
    assert run(["workflows", "list"]) != 0
    assert f"topic {named}" in (said := capsys.readouterr().err)
    assert "amends acls" in said


def test_topics_are_not_made_without_the_right_to(granted: Secured, topic_prefix: str) -> None:
    with pytest.raises(TopicsWrong, match=r"could not be created.*amends acls"):
        create_topics(granted.settings(WAY, "console", topic_prefix))


def test_a_right_withdrawn_under_way_ends_the_processor_and_once_granted_again_nothing_is_lost(
    granted: Secured, without: Callable[[Part, str, Operation], str]
) -> None:
    workflow_id = f"w-{uuid.uuid4().hex[:8]}"
    with compensator(settings(granted, Part.COMPENSATOR)):
        with (  # noqa: PT012 - what it does while the right goes
            pytest.raises(RightMissingError, match="amends acls"),
            processor(settings(granted, Part.PROCESSOR)) as running,
        ):
            eventually(lambda: running.partitions == 2)
            without(Part.PROCESSOR, f"P.undo.{LANE}", Operation.WRITE)
            fail_a_workflow(settings(granted, Part.AGENTS), workflow_id)
            eventually(lambda: running.ended)
        assert "authorization failed" in turned_away.words()
        restore(granted, Part.PROCESSOR, right_of(Part.PROCESSOR, f"P.undo.{LANE}"))
        with processor(settings(granted, Part.PROCESSOR)):
            await_undone(workflow_id)


def test_a_person_who_may_decide_has_a_finished_workflow_undone(
    granted: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow_id = f"w-{uuid.uuid4().hex[:8]}"
    with processor(settings(granted, Part.PROCESSOR)), compensator(settings(granted, Part.COMPENSATOR)):
        fail_a_workflow(settings(granted, Part.AGENTS), workflow_id, fails=False)
        arguments = ["workflows", "undo", workflow_id, "--reason", "wrong prices", "--by", "ann", "--yes"]
        for part, code in ((Part.CONSOLE, 1), (Part.DECISIONS, 0)):
            for name, value in variables_of(settings(granted, part)).items():
                monkeypatch.setenv(name, value)
            assert run(arguments) == code, capsys.readouterr().err
        await_undone(workflow_id)
