"""The compose file and the image's recipe, held to what our settings and our rules say. No Docker is needed."""

from __future__ import annotations

import importlib
import re
import socket
import subprocess
import time
from typing import Any

import pytest
from tests.architecture.parts import ROOT
from tests.containers.compose_file import FILE, compose, is_ours, runs_on, services

from amends.compensators.settings import CompensatorSettings
from amends.console.configuration import sections
from amends.kafka.loading import load_settings
from amends.kafka.settings import KafkaSettings
from amends.local.children import free_port
from amends.local.kafka_server import KafkaServer
from amends.local.story.remotes import PAYMENTS, SHIPPING, WAREHOUSE
from amends.processors.settings import ProcessorSettings
from amends.tools.registry import HandlerRegistry

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
STORY = {PAYMENTS, WAREHOUSE, SHIPPING}
SERVICES = sorted(services())
OURS = [name for name in SERVICES if is_ours(services()[name])]
LONG = [name for name in SERVICES if runs_on(services()[name])]
SECRET = re.compile(r"password|secret|token|credential|api[_-]?key|private", re.IGNORECASE)


def environment(name: str) -> dict[str, str]:
    """Return the variables of a service; compose hands every value on as a string."""
    given: dict[str, Any] = services()[name].get("environment", {})
    assert all(isinstance(value, str) for value in given.values()), f"{name}: quote what is not a word"
    return dict(given)


def command(name: str) -> list[str]:
    service = services()[name]
    return [*service.get("entrypoint", ["amends"]), *service.get("command", [])]


def parts(word: str) -> list[str]:
    return [name for name in OURS if command(name)[:2] == ["amends", word]]


@pytest.mark.parametrize("name", OURS)
def test_every_variable_of_a_service_is_one_that_somebody_reads(name: str) -> None:
    given = environment(name)
    unknown = {variable for variable in given if not variable.startswith("AMENDS_")} - STORY
    assert not unknown
    for section, model in sections().items():
        load_settings(model, section, given)  # refuses a name that is unknown, a value that does not fit


@pytest.mark.parametrize("name", OURS)
def test_every_service_of_ours_that_speaks_to_kafka_names_it(name: str) -> None:
    if command(name)[0] != "amends":
        return
    settings = load_settings(KafkaSettings, "kafka", environment(name))
    assert settings.bootstrap_servers == "kafka:19092"
    assert (
        f"PLAINTEXT://{settings.bootstrap_servers}" in services()["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    )


def test_there_are_two_processors_and_two_compensators_each_with_a_name_of_its_own() -> None:
    by_default = [name for name in OURS if "profiles" not in services()[name]]
    processors = [name for name in parts("processor") if name in by_default]
    compensators = [name for name in parts("compensator") if name in by_default]
    assert (len(processors), len(compensators)) == (2, 2)
    named = [load_settings(ProcessorSettings, "processor", environment(n)).instance_id for n in parts("processor")]
    named += [
        load_settings(CompensatorSettings, "compensator", environment(n)).instance_id for n in parts("compensator")
    ]
    assert None not in named
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("name", parts("compensator"))
def test_a_compensator_s_modules_are_there_and_its_lanes_are_theirs(name: str) -> None:
    settings = load_settings(CompensatorSettings, "compensator", environment(name))
    kafka = load_settings(KafkaSettings, "kafka", environment(name))
    tools = HandlerRegistry()
    tools.load(list(settings.modules))
    assert settings.lanes
    assert set(settings.lanes) == set(tools.lanes) <= set(kafka.lanes)
    assert set(environment(name)) >= STORY


def test_the_engine_for_faust_folds_topics_of_its_own_under_an_id_of_its_own() -> None:
    faust = [name for name in parts("processor") if services()[name].get("profiles") == ["faust"]]
    others = [name for name in parts("processor") if name not in faust]
    assert len(faust) == 2
    assert {environment(name).get("AMENDS_PROCESSOR__ENGINE") for name in faust} == {"faust"}

    def whose(name: str) -> tuple[str, str]:
        settings = load_settings(ProcessorSettings, "processor", environment(name))
        return settings.application_id, load_settings(KafkaSettings, "kafka", environment(name)).topic_prefix

    assert not {part for name in faust for part in whose(name)} & {part for name in others for part in whose(name)}
    undone_under = {environment(n).get("AMENDS_COMPENSATOR__REGISTRY_PREFIX", "amends") for n in parts("compensator")}
    assert len(undone_under) == 2, "two pipelines share a Redis: each has keys of its own"


@pytest.mark.parametrize("name", parts("processor") + parts("compensator"))
def test_the_health_check_asks_the_port_where_health_is_told(name: str) -> None:
    section: Any = ProcessorSettings if name in parts("processor") else CompensatorSettings
    settings = load_settings(section, command(name)[1], environment(name))
    assert f"http://127.0.0.1:{settings.health_port}/healthz" in services()[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", LONG)
def test_what_runs_on_has_a_health_check_and_is_started_again(name: str) -> None:
    check = services()[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


def broker_is_healthy(address: str) -> bool:
    """Run the broker's own check against another address, and with little patience."""
    kind, line = services()["kafka"]["healthcheck"]["test"]
    assert (kind, "java" in line, ".sh" in line) == ("CMD-SHELL", False, False), "a Java for each check"
    line = line.replace("/dev/tcp/kafka/19092", f"/dev/tcp/{address.replace(':', '/')}").replace(
        "timeout 4", "timeout 1"
    )
    return subprocess.run(["/bin/sh", "-c", line], check=False, capture_output=True, timeout=30).returncode == 0


@pytest.mark.kafka
def test_a_broker_that_answers_is_healthy(kafka: KafkaServer) -> None:
    deadline = time.monotonic() + 30
    while not broker_is_healthy(kafka.bootstrap_servers):
        assert time.monotonic() < deadline, "it answers our clients and is said to be unhealthy"


def test_an_open_port_without_a_broker_is_not_healthy_nor_is_a_closed_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not broker_is_healthy(f"127.0.0.1:{silent.getsockname()[1]}")
    assert not broker_is_healthy(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize("name", SERVICES)
def test_what_does_not_run_on_is_a_job_or_a_person_s(name: str) -> None:
    service = services()[name]
    assert service["restart"] in {"unless-stopped", "on-failure", "no"}
    if service["restart"] == "on-failure":
        assert command(name) == ["amends", "topics", "create"]
    if service["restart"] == "no":
        assert service["profiles"] in (["tools"], ["tools-faust"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_port_is_open_to_this_machine_only(name: str) -> None:
    for port in services()[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port)), port
    assert "network_mode" not in services()[name]


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_or_may_become_it(name: str) -> None:
    service = services()[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    if is_ours(service):
        assert service["read_only"] is True
        assert "user" not in service, "the image says who"
    else:
        assert int(service["user"].partition(":")[0]) > 0


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_broker_and_the_redis_keep_anything_and_nobody_mounts_this_machine(name: str) -> None:
    kept = services()[name].get("volumes", [])
    assert all(re.fullmatch(r"[a-z]+:/[a-z/]+", volume) for volume in kept)
    assert bool(kept) == (name in {"kafka", "redis"})


def test_images_of_others_are_pinned_and_ours_are_built() -> None:
    for name, service in services().items():
        if is_ours(service):
            assert service["build"]["target"] in re.findall(r"^FROM .* AS (\w+)$", DOCKERFILE, re.MULTILINE), name
        else:
            assert re.fullmatch(r"[a-z/]+:\d+\.\d+\.\d+(-[a-z]+)?(@sha256:[0-9a-f]{64})?", service["image"]), name
    base = re.search(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert base
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base[1])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON}", "amends"}


def test_there_is_no_secret_in_it() -> None:
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            assert not SECRET.search(variable), f"{name}: {variable}"
            assert "@" not in value or variable == "KAFKA_CONTROLLER_QUORUM_VOTERS", f"{name}: {variable}"
        assert "env_file" not in service
    assert "secrets" not in compose()


def test_whoever_is_waited_for_is_there_and_can_tell_that_it_is_ready() -> None:
    for name, service in services().items():
        for other, how in service.get("depends_on", {}).items():
            job = how["condition"] == "service_completed_successfully"
            assert job or "healthcheck" in services()[other], f"{name} waits for {other}"
            assert job == (services()[other]["restart"] == "on-failure")
            allowed = services()[other].get("profiles", service.get("profiles"))
            assert allowed == service.get("profiles"), f"{name} waits for {other}, which its profile does not start"


def test_the_redis_keeps_what_it_is_told_and_never_evicts() -> None:
    told = " ".join(services()["redis"]["command"])
    assert "--appendonly yes" in told
    assert "--maxmemory-policy noeviction" in told
    assert "--protected-mode no" in told, "or it refuses the other containers"


def test_a_service_of_the_story_is_a_module_that_is_there() -> None:
    for name in OURS:
        words = command(name)
        if words[:2] == ["python", "-m"]:
            importlib.import_module(words[2])


def test_the_image_runs_as_nobody_special_and_its_part_is_process_1() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[0] == "10001:10001"
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)[-1] == "10001:10001"
    assert re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE) == ['["amends"]']
    last = DOCKERFILE[DOCKERFILE.index(" AS amends") :].partition("\nFROM ")[0]
    assert "apt-get" not in last
    assert "pip" not in re.sub(r"#.*|PIP_PYTHON\S*", "", last), "what builds stays in the first stage"


def test_nothing_enters_the_build_but_what_is_built() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] not in {"#", ""}]
    assert lines[0] == "*"
    taken = {line[1:] for line in lines if line.startswith("!")}
    roots = {path.parent.name for path in ROOT.glob("*/amends") if not path.parent.name.startswith(".")}
    assert taken == roots | {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}


def test_the_words_at_the_top_name_services_and_profiles_that_are_there() -> None:
    top = FILE.read_text("utf-8").partition("\nx-")[0]
    assert set(re.findall(r"run --rm (\w+)", top)) <= set(SERVICES)
    assert set(re.findall(r"--profile (\w+)", top)) <= {p for s in services().values() for p in s.get("profiles", [])}
