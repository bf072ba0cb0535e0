"""What helm makes of the chart with some values, and the parts of it that tests ask for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "amends"
RELEASE = "try"
CLUSTER = "1.30.0"
"""The cluster that helm is to suppose: one that Go built takes it to be of 2020."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """Runs one helm."""

    binary: Path

    def run(self, *arguments: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.binary), *arguments, "--kube-version", CLUSTER, "--values", "-"],
            input=yaml.safe_dump(dict(values)),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def template(self, values: Mapping[str, Any]) -> Objects:
        """Return what the chart is rendered to. Asserts that it can be."""
        done = self.run("template", RELEASE, str(CHART), "--namespace", "there", values=values)
        assert done.returncode == 0, done.stderr
        return Objects([found for found in yaml.safe_load_all(done.stdout) if found])

    def refusal(self, values: Mapping[str, Any]) -> str:
        """Return why the chart can't be rendered. Asserts that it can't."""
        done = self.run("template", RELEASE, str(CHART), values=values)
        assert done.returncode != 0, "rendered, though it should be refused"
        return done.stderr


@dataclass(frozen=True)
class Objects:
    """Kubernetes objects."""

    all: list[Object]

    def of(self, *kinds: str) -> list[Object]:
        return [found for found in self.all if found["kind"] in kinds]

    def pods(self) -> list[tuple[Object, Object]]:
        """Return each thing that makes pods, with its pod template."""
        return [(found, found["spec"]["template"]) for found in self.of("StatefulSet", "Deployment", "Job")]

    def containers(self) -> Iterator[tuple[Object, Object]]:
        """Yield each container, with what makes its pods."""
        for owner, template in self.pods():
            for container in template["spec"]["containers"]:
                yield owner, container


def environment(container: Object) -> dict[str, str]:
    """Return the variables of a container; one that comes from elsewhere says from where."""
    return {found["name"]: found["value"] if "value" in found else _from(found) for found in container["env"]}


def _from(variable: Object) -> str:
    source = variable["valueFrom"]
    if "fieldRef" in source:
        return f"field {source['fieldRef']['fieldPath']}"
    return "secret {name} {key}".format_map(source["secretKeyRef"])
