"""Guards on Apache Kafka, with `amends processor`: two processes of one agent, and a person at the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.kafka_parts import eventually
from tests.integration.test_console_rulings import Amends
from tests.integration.test_processor import environment, read

from amends.console.application import run
from amends.console.exits import NEEDS_ATTENTION, NOT_FOUND, OK, USAGE
from amends.kafka.settings import KafkaSettings
from amends.kafka.topics import create_topics
from amends.local.kafka_server import KafkaServer
from amends.producers import ProducerSettings, Runtime, Succeeded, workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.schemas.commands import Incident, IncidentState
from amends.schemas.facts import StepEvent
from amends.tools import irreversible
from amends.tools.errors import NotApproved

pytestmark = pytest.mark.kafka

AGENT = """
import json, os, signal, sys
from pathlib import Path
from amends.kafka.settings import KafkaSettings
from amends.producers import ProducerSettings, workflow
from amends.producers.kafka_ledger import kafka_runtime
from amends.tools import KEY, compensable

shown, world, name, dies = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "dies"

def done(text):
    with world.open("a") as file:
        file.write(text + "\\n")

@compensable("shop.charge")
def charge(customer: str, amount: float, currency: str = "eur", *, idempotency_key: str = KEY) -> str:
    if idempotency_key not in world.read_text():
        done(f"charge {customer} {idempotency_key}")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)  # it lands, and its answer is lost
    return f"ch_{customer}"

@charge.undo(arguments={"id": "output"}, idempotency="key")
def refund(id: str, *, idempotency_key: str = KEY) -> None: ...

@compensable("shop.order")
def order(item: str) -> str:
    done(f"order {item}")
    return f"order of {item} by {os.getpid()}"

@order.undo(arguments={"id": "output"}, idempotency="key")
def cancel(id: str, *, idempotency_key: str = KEY) -> None: ...

runtime = kafka_runtime(KafkaSettings.model_validate_json(shown), ProducerSettings(standing_within_ms=60_000))
with workflow("w", on_existing="resume", runtime=runtime) as wf:
    cup = order.options(tool_call_id=f"{name}-1")("cup")
    asked = {"amount": 100, "customer": "cus_1"} if dies else {"customer": "cus_1", "amount": 100.0, "currency": "eur"}
    paid = charge.options(tool_call_id=f"{name}-2")(**asked)
    print(json.dumps([cup, paid]), flush=True)
runtime.close()
"""


@pytest.fixture
def settings(kafka: KafkaServer, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    made = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix, partitions=2, replication_factor=1
    )
    create_topics(made)
    for name in ("topic_prefix", "partitions", "replication_factor", "bootstrap_servers"):
        monkeypatch.setenv(f"AMENDS_KAFKA__{name.upper()}", str(getattr(made, name)))
    return made


@pytest.fixture
def processor(settings: KafkaSettings, tmp_path: Path) -> Iterator[None]:
    with (tmp_path / "processor").open("wb") as log:
        command = [str(Path(sys.executable).with_name("amends")), "processor"]
        process = subprocess.Popen(command, env=environment(settings), stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def runtime(settings: KafkaSettings) -> Iterator[Runtime]:
    made = kafka_runtime(settings, ProducerSettings(standing_within_ms=60_000, approval_within_ms=100))
    yield made
    made.close()


@pytest.fixture
def amends(capsys: pytest.CaptureFixture[str]) -> Amends:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.usefixtures("processor")
def test_a_task_that_is_planned_again_in_another_process_has_each_effect_once(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    world = tmp_path / "world"
    world.touch()

    def agent(name: str, how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", AGENT, settings.model_dump_json(), str(world), name, how]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))

    first = agent("a", "dies")
    assert first.returncode == -9, first.stderr
    second = agent("b", "lives")
    assert second.returncode == 0, second.stderr
    third = agent("c", "lives")  # once more, after its end: every call is answered from the record
    assert third.returncode == 0, third.stderr
    assert json.loads(second.stdout) == json.loads(third.stdout)
    effects = [line.split()[:2] for line in world.read_text().splitlines()]
    assert effects == [["order", "cup"], ["charge", "cus_1"]]


WIRED: list[str] = []


@irreversible("bank.wire", approval="1h")
def wire(to: str, cents: int) -> str:
    WIRED.append(f"{to} {cents}")
    return f"wired to {to}"


def asked(settings: KafkaSettings, version: str) -> Callable[[], str]:
    """Return what looks for the open request of this number, as a person names it."""

    def look() -> str:
        last = {r.incident_id: r for r in read(settings, settings.topics.incidents) if isinstance(r, Incident)}
        waits = (i for i in last.values() if i.state is IncidentState.OPEN and i.attributes["version"] == version)
        return next((f"{incident.incident_id[:8]}.{version}" for incident in waits), "")

    return look


@pytest.mark.usefixtures("processor")
def test_a_person_approves_a_call_and_no_other(settings: KafkaSettings, runtime: Runtime, amends: Amends) -> None:
    WIRED.clear()
    with workflow("w", agent="payer", requested_by="ann", runtime=runtime) as wf:
        with pytest.raises(NotApproved):
            wire.options(call_id="invoice-7")("acme", 500)
        first = eventually(asked(settings, "1"))
        code, out, _ = amends("approvals", "list", "--check")
        assert code == NEEDS_ATTENTION
        assert ("bank.wire" in out, "ann" in out, first in out) == (True, True, True)
        _, out, _ = amends("approvals", "show", first)
        assert ("acme" in out, "500" in out) == (True, True)

        approve = ("approvals", "approve", "--reason", "ordered", "--yes")
        assert amends(*approve, first.partition(".")[0], "--by", "bob")[0] == USAGE, "which one has he looked at?"
        for words, arguments in (
            ("who asks can't approve", (first, "--by", "ann")),
            ("who asks can't approve", (first, "--by", "payer")),
        ):
            code, _, err = amends(*approve, *arguments)
            assert (code, words in err) == (NEEDS_ATTENTION, True), err
        assert amends(*approve, "0000.1", "--by", "bob")[0] == NOT_FOUND
        assert amends("approvals", "show", "0000")[0] == NOT_FOUND

        with pytest.raises(NotApproved):
            wire.options(call_id="invoice-7")("acme", 50_000)  # meanwhile the agent wants more
        second = eventually(asked(settings, "2"))
        code, _, err = amends(*approve, first, "--by", "bob")
        assert (code, "arguments may have changed" in err) == (NEEDS_ATTENTION, True)

        code, out, err = amends(*approve, second, "--by", "bob", "--for", "10m", "--dry-run")
        assert (code, "Nothing was written" in out, "50000" in out) == (OK, True, True), err
        assert amends(*approve, second, "--by", "bob", "--for", "10m")[0] == OK
        assert wire.options(call_id="invoice-7", approval_within="30s")("acme", 50_000) == "wired to acme"
        code, _, err = amends(*approve, second, "--by", "cid")
        assert (code, "granted by bob" in err) == (NEEDS_ATTENTION, True)
    assert wf.outcome == Succeeded()
    assert WIRED == ["acme 50000"]
    assert "granted by bob" in amends("approvals", "list", "--all")[1]
    assert amends("approvals", "list", "--check")[0] == OK


@pytest.mark.usefixtures("processor")
def test_a_grant_reaches_an_agent_that_waits_and_a_rejection_too(
    settings: KafkaSettings, runtime: Runtime, amends: Amends
) -> None:
    WIRED.clear()
    results: list[object] = []

    def agent(to: str) -> None:
        with workflow(to, runtime=runtime):
            try:
                results.append(wire.options(approval_within="30s")(to, 1))
            except NotApproved as refusal:
                results.append((refusal.rejected, refusal.by, refusal.reason))

    for to, verb in (("acme", "approve"), ("evil", "reject")):
        thread = threading.Thread(target=agent, args=(to,))
        thread.start()
        request = eventually(asked(settings, "1"))
        assert amends("approvals", verb, request, "--reason", "looked at it", "--by", "bob", "--yes")[0] == OK
        thread.join(30)
    assert results == ["wired to acme", (True, "bob", "looked at it")]
    assert WIRED == ["acme 1"]
    steps = [r for r in read(settings, settings.topics.ledger) if isinstance(r, StepEvent)]
    assert [s.status.value for s in steps if s.workflow_id == "acme"] == ["REQUESTED", "STARTED", "SUCCEEDED"]
    assert [s.status.value for s in steps if s.workflow_id == "evil"] == ["REQUESTED"]
