"""Before-images on a real broker, registry and worker: what is put back, over what, and what is left to a person."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.integration.setting_tools import LANE, content, coroutine, plain, put_back
from tests.integration.test_worker import Bench, bench_on

from amends.local.kafka_server import KafkaServer
from amends.schemas.commands import UndoCommand, UndoEntry
from amends.schemas.contract import Idempotency
from amends.schemas.facts import CHANGED_SINCE, StepEvent, StepStatus, UndoEvent
from amends.schemas.keys import undo_key
from amends.schemas.payload import encode_payload

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.asyncio(loop_scope="module")]

TOOLS = {"settings.plain": plain.tool, "settings.coroutine": coroutine.tool}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def bench(kafka: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("served")
    with bench_on(kafka, f"t{uuid.uuid4().hex[:10]}", redis_url, folder) as bench:
        async with bench.worker(modules=("tests.integration.setting_tools",)):
            yield bench


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "setting"
    file.write_text("before")
    return file


async def _undone(
    bench: Bench, tool: str, file: Path, *, captured: str | None = "before", written: str | None, now: str | None
) -> UndoEvent:
    """Put a step on the ledger that overwrote `file`, have the world show `now`, and return how its undo ended."""
    workflow = f"w-{uuid.uuid4().hex[:8]}"
    given = {"path": str(file), "text": "ours"}
    image = encode_payload(captured)
    facts = [
        StepEvent(
            workflow, "s1", "a1", 0, StepStatus.STARTED, tool, workflow_offset=0, captured=image,
            input_payload=encode_payload(given), contract=TOOLS[tool].contract_bytes,
        )
    ]  # fmt: skip
    if written is not None:
        after = encode_payload(written)
        facts.append(StepEvent(workflow, "s1", "a1", 0, StepStatus.SUCCEEDED, tool, workflow_offset=0, written=after))
    offsets = [bench.write(fact) for fact in facts]
    put_back(str(file), now)
    resolved = TOOLS[tool].resolve(given, captured=captured)
    entry = UndoEntry(
        "s1", tool, tool, 0, 0, undo_key(workflow, 0), resolved.data, 30_000, 100, Idempotency.NATURAL,  # type: ignore[union-attr]
        started_offset=offsets[0], outcome_offset=offsets[1] if written is not None else -1, compares=True,
    )  # fmt: skip
    bench.command(UndoCommand(workflow, 0, 1, LANE, offsets[-1], (entry,)))
    await bench.until(lambda: len(bench.undo_statuses(workflow)) == 2)
    outcome = bench.facts(workflow)[-1]
    assert isinstance(outcome, UndoEvent)
    return outcome


@pytest.mark.parametrize("tool", TOOLS)
async def test_what_the_call_wrote_is_put_back_and_seen_to_be(bench: Bench, file: Path, tool: str) -> None:
    outcome = await _undone(bench, tool, file, written="ours", now="ours")
    assert (outcome.status.value, outcome.verified, content(str(file))) == ("UNDONE", True, "before")


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_file_that_was_not_there_is_gone_again(bench: Bench, file: Path, tool: str) -> None:
    outcome = await _undone(bench, tool, file, captured=None, written="ours", now="ours")
    assert (outcome.status.value, content(str(file))) == ("UNDONE", None)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("now", ["somebody else's", None])
async def test_a_newer_value_is_not_lost(bench: Bench, file: Path, tool: str, now: str | None) -> None:
    outcome = await _undone(bench, tool, file, written="ours", now=now)
    assert (outcome.status.value, outcome.retryable) == ("FAILED", False)
    assert outcome.error is not None
    assert outcome.error.type == CHANGED_SINCE
    assert content(str(file)) == now


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_call_that_was_cut_off_before_its_effect_leaves_nothing_to_undo(
    bench: Bench, file: Path, tool: str
) -> None:
    outcome = await _undone(bench, tool, file, written=None, now="before")
    assert (outcome.status.value, outcome.verified, content(str(file))) == ("NOTHING_TO_UNDO", True, "before")


async def test_a_call_that_was_cut_off_behind_its_effect_is_undone_if_it_says_what_it_writes(
    bench: Bench, file: Path
) -> None:
    outcome = await _undone(bench, "settings.coroutine", file, written=None, now="ours")
    assert (outcome.status.value, content(str(file))) == ("UNDONE", "before")
    outcome = await _undone(bench, "settings.plain", file, written=None, now="ours")
    assert (outcome.status.value, content(str(file))) == ("FAILED", "ours"), "nobody can tell whose it is"


async def test_an_undo_that_was_done_behind_our_back_is_not_done_again(bench: Bench, file: Path) -> None:
    outcome = await _undone(bench, "settings.plain", file, written="ours", now="before")
    assert (outcome.status.value, content(str(file))) == ("NOTHING_TO_UNDO", "before")
