"""The Helm chart, rendered by helm itself with combinations of its main values, and held to Kubernetes' schemas."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import kubernetes_validate
import pytest
import yaml
from tests.deploy import helm as helm_binary
from tests.deploy.rendered import CHART, Helm, Object, Objects, environment

from amends.compensators.settings import CompensatorSettings
from amends.kafka import KafkaSettings, load_settings
from amends.kafka.schema_registry_settings import SchemaRegistrySettings
from amends.kafka.secrets import is_secret
from amends.processors.settings import ProcessorSettings

VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
KUBERNETES = ("1.30", "1.37")
"""The oldest whose schemas the validator ships in this form that people still run, and the newest."""

DEFAULT: dict[str, Any] = {
    "kafka": {"bootstrapServers": "kafka-1:9092,kafka-2:9092"},
    "redis": {"url": "redis://redis:6379/0"},
    "compensators": {"payments": {"modules": ["shop.payments"]}},
}
LANES = {
    "compensators": {
        "payments": {
            "modules": ["shop.payments", "shop.cards"],
            "image": {"repository": "registry.example/shop", "tag": "7"},
            "env": [{"name": "STRIPE_KEY", "valueFrom": {"secretKeyRef": {"name": "stripe", "key": "key"}}}],
            "envFrom": [{"secretRef": {"name": "more"}}],
            "drainMs": 90_000,
            "settings": {"concurrency_max": 64, "redis_check": "trust"},
        },
        "Shipping_eu.west": {"modules": ["shop.shipping"], "replicas": 1, "processes": 0},
        "crm": {"modules": ["shop.crm"], "topologySpreadConstraints": []},
    },
    "kafka": {"otherLanes": ["billing"]},
}
ENGINES = get_args(ProcessorSettings.model_fields["engine"].annotation)
ANOTHER_ENGINE = {"processors": {"engine": ENGINES[-1], "refold": True, "settings": {"checkpoint_ms": 200}}}
TLS = {
    "kafka": {
        "options": {"sasl.mechanism": "SCRAM-SHA-512", "security.protocol": "SASL_SSL"},
        "secretOptions": {
            "sasl.username": {"name": "kafka-user", "key": "name"},
            "sasl.password": {"name": "kafka-user", "key": "password"},
        },
        "tls": {"existingSecret": "kafka-tls", "certificateKey": "tls.crt", "privateKeyKey": "tls.key"},
    },
    "schemaRegistry": {
        "url": "https://registry-1:8081,https://registry-2:8081",
        "existingSecret": "registry",
        "tls": {
            "existingSecret": "registry-tls",
            "certificateKey": "tls.crt",
            "privateKeyKey": "tls.key",
            "keyPasswordKey": "password",
        },
    },
    "processors": {"kafka": {"secretOptions": {"sasl.password": {"name": "kafka-processor", "key": "password"}}}},
    "compensators": {"payments": {"kafka": {"tlsExistingSecret": "kafka-payments"}}},
    "redis": {"url": "", "existingSecret": "redis-url", "urlKey": "whole", "tls": {"existingSecret": "redis-ca"}},
}
SENTINELS = {
    "redis": {
        "url": "rediss+sentinel://s-1:26379,s-2:26379/main/0",
        "user": "undo",
        "passwordSecret": {"name": "redis"},
        "sentinel": {"user": "watcher", "passwordSecret": {"name": "sentinels", "key": "pw"}},
        "tls": {"existingSecret": "redis-ca", "certificateKey": "tls.crt", "privateKeyKey": "tls.key"},
    }
}
WATCHED = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "processorsTo": [{"ports": [{"port": 9092, "protocol": "TCP"}]}],
        "compensatorsTo": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}],
    },
}
ELSEWHERE = {
    "processors": {"enabled": False},
    "topics": {"create": "none"},
    "serviceAccount": {"create": False, "name": "mine"},
    "nameOverride": "undo",
}
UPGRADE = {"kafka": {"recordsOf": "0.1.0"}, "topics": {"create": "job"}, "image": {"digest": "sha256:" + "a" * 64}}


def merged(*given: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for values in given:
        for name, value in values.items():
            below = result.get(name)
            if isinstance(below, dict) and isinstance(value, Mapping):
                result[name] = merged(below, value)
            else:
                result[name] = copy.deepcopy(value)
    return result


CASES = {
    "default": DEFAULT,
    "several lanes": merged(DEFAULT, LANES),
    "another engine": merged(DEFAULT, ANOTHER_ENGINE),
    "secured": merged(DEFAULT, TLS),
    "sentinels": merged(DEFAULT, SENTINELS),
    "watched": merged(DEFAULT, LANES, WATCHED),
    "lanes of another team": merged(DEFAULT, ELSEWHERE),
    "upgrade": merged(DEFAULT, UPGRADE),
    "all": merged(DEFAULT, LANES, ANOTHER_ENGINE, TLS, WATCHED, UPGRADE),
}


@pytest.fixture(scope="module")
def helm() -> Helm:
    found = helm_binary.find()
    if found is None:
        pytest.skip("no helm: it is neither on the PATH nor built; `make helm` builds it, where there is Go")
    return Helm(found)


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> dict[str, Objects]:
    return {name: helm.template(values) for name, values in CASES.items()}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, rendered: dict[str, Objects]) -> Objects:
    return rendered[request.param]


def test_helm_finds_nothing_to_say_about_the_chart(helm: Helm) -> None:
    for values in CASES.values():
        done = helm.run("lint", "--strict", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_is_what_kubernetes_wants(case: Objects) -> None:
    for found in case.all:
        if found["apiVersion"].startswith("monitoring.coreos.com"):  # Kubernetes' own schemas have no such kind
            continue
        for version in KUBERNETES:
            kubernetes_validate.validate(found, version, strict=True)


def test_no_two_objects_share_a_name(case: Objects) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in case.all]
    assert len(names) == len(set(names))


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for /etc/amends in a container: the client looks into the certificates it is given."""
    folder = tmp_path_factory.mktemp("etc")
    for secret in ("kafka-tls", "registry-tls", "redis-tls"):
        (folder / secret).mkdir()
        key, certificate = str(folder / secret / "tls.key"), str(folder / secret / "tls.crt")
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=amends", "-days", "1"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
        shutil.copy(certificate, folder / secret / "ca.crt")
    return folder


def given_to(container: Object, files: Path) -> dict[str, str]:
    """Return the environment as the process has it: what comes from secrets is something."""
    told = environment(container)
    url = "AMENDS_COMPENSATOR__REDIS_URL"
    if told.get(url, "").startswith("secret"):
        told[url] = "redis://:pw@there/0"
    return {name: value.replace("/etc/amends", str(files)) for name, value in told.items()}


def test_every_part_is_told_only_what_it_knows(case: Objects, files: Path) -> None:
    for _, container in case.containers():
        env = given_to(container, files)
        kafka = load_settings(KafkaSettings, "kafka", env)
        assert kafka.bootstrap_servers == "kafka-1:9092,kafka-2:9092"
        registry = load_settings(SchemaRegistrySettings, "schema_registry", env)
        if registry.is_set:
            assert registry.url == ("https://registry-1:8081", "https://registry-2:8081")
            assert registry.user == "secret registry user"
        match container["args"][0]:
            case "processor":
                processor = load_settings(ProcessorSettings, "processor", env)
                assert (processor.health_host, processor.health_port) == ("0.0.0.0", 8080)
                assert container["ports"][0]["containerPort"] == processor.health_port
            case "compensator":
                compensator = load_settings(CompensatorSettings, "compensator", env)
                assert compensator.redis_url is not None
                assert container["args"][-2] == "--lane"
                assert container["args"][-1] in kafka.lanes
            case command:
                assert (command, container["args"][1:]) == ("topics", ["create"])


def test_every_part_of_every_lane_knows_the_same_lanes(rendered: dict[str, Objects]) -> None:
    told = {environment(container)["AMENDS_KAFKA__LANES"] for _, container in rendered["several lanes"].containers()}
    assert told == {"Shipping_eu.west,billing,crm,payments"}


def test_numbers_are_written_as_numbers(rendered: dict[str, Objects]) -> None:
    for _, container in rendered["default"].containers():
        assert environment(container)["AMENDS_KAFKA__LEDGER_RETENTION_MS"] == "2592000000"


def test_options_of_the_client_and_certificates_reach_every_part(rendered: dict[str, Objects], files: Path) -> None:
    for owner, container in rendered["secured"].containers():
        is_processor = owner["kind"] == "StatefulSet"
        options = load_settings(KafkaSettings, "kafka", given_to(container, files)).options
        assert options == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "secret kafka-user name",
            "sasl.password": f"secret {'kafka-processor' if is_processor else 'kafka-user'} password",
            "ssl.ca.location": f"{files}/kafka-tls/ca.crt",
            "ssl.certificate.location": f"{files}/kafka-tls/tls.crt",
            "ssl.key.location": f"{files}/kafka-tls/tls.key",
        }
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts["kafka-tls"]["mountPath"] == "/etc/amends/kafka-tls"
        volumes = {volume["name"]: volume for volume in owner["spec"]["template"]["spec"]["volumes"]}
        own = "kafka-payments" if owner["kind"] == "Deployment" else "kafka-tls"
        assert volumes["kafka-tls"]["secret"]["secretName"] == own


def test_certificates_of_the_schema_registry_reach_the_parts_that_ask_it(
    rendered: dict[str, Objects], files: Path
) -> None:
    for owner, container in rendered["secured"].containers():
        settings = load_settings(SchemaRegistrySettings, "schema_registry", given_to(container, files))
        assert settings.is_set == (owner["kind"] != "Job")
        if settings.is_set:
            assert settings.ssl_ca_location == f"{files}/registry-tls/ca.crt"
            assert settings.ssl_certificate_location == f"{files}/registry-tls/tls.crt"
            assert settings.ssl_key_location == f"{files}/registry-tls/tls.key"
            assert settings.ssl_key_password is not None
            assert settings.ssl_key_password.get_secret_value() == "secret registry-tls password"


def test_a_registry_whose_authority_everybody_knows_is_trusted_as_python_does(helm: Helm, files: Path) -> None:
    for _, container in helm.template(merged(DEFAULT, TLS, {"schemaRegistry": {"tls": {"caKey": ""}}})).containers():
        settings = load_settings(SchemaRegistrySettings, "schema_registry", given_to(container, files))
        assert settings.ssl_ca_location is None


def test_a_pod_waits_for_no_certificates_but_those_it_uses(rendered: dict[str, Objects]) -> None:
    wanted = {
        "Job": {"kafka-tls"},  # so it can run before there are others
        "StatefulSet": {"kafka-tls", "registry-tls"},
        "Deployment": {"kafka-tls", "registry-tls", "redis-tls"},
    }
    mounted: dict[str, set[str]] = {}
    for owner, template in rendered["secured"].pods():
        mounted[owner["kind"]] = {volume["name"] for volume in template["spec"]["volumes"] if "secret" in volume}
    assert mounted == wanted


def test_every_file_that_a_part_is_told_of_is_mounted_and_every_mount_is_told_of(case: Objects) -> None:
    for owner, container in case.containers():
        folder = "/etc/amends/"
        told = {value.split("/")[3] for value in environment(container).values() if value.startswith(folder)}
        mounts = {found["name"] for found in container["volumeMounts"] if found["mountPath"].startswith(folder)}
        volumes = {found["name"] for found in owner["spec"]["template"]["spec"]["volumes"] if "secret" in found}
        assert told == mounts == volumes


def test_the_values_of_the_page_make_what_it_says(helm: Helm) -> None:
    page = (CHART.parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    made = helm.template(yaml.safe_load(textwrap.dedent(block)))
    lanes = {found["metadata"]["labels"]["amends/lane"] for found in made.of("Deployment")}
    assert lanes == {"payments", "shipping"}
    for _, template in made.pods():
        secrets = {volume["secret"]["secretName"] for volume in template["spec"]["volumes"] if "secret" in volume}
        named = {*secrets, *(pull["name"] for pull in template["spec"]["imagePullSecrets"])}
        for container in template["spec"]["containers"]:
            named |= {words.split()[1] for words in environment(container).values() if words.startswith("secret ")}
        for name in named:
            assert re.search(rf"create secret (generic|docker-registry) {name} ", page), f"nothing makes {name}"


def test_certificates_of_a_registry_that_nobody_asks_are_not_mounted(helm: Helm) -> None:
    values = merged(DEFAULT, {"schemaRegistry": {"tls": {"existingSecret": "registry-tls"}}})
    for _, template in helm.template(values).pods():
        assert not [volume for volume in template["spec"]["volumes"] if "secret" in volume]


def test_certificates_and_passwords_of_redis_reach_compensators(rendered: dict[str, Objects], files: Path) -> None:
    for case, url in (
        ("secured", "redis://:pw@there/0"),
        ("sentinels", "rediss+sentinel://s-1:26379,s-2:26379/main/0"),
    ):
        for owner, container in rendered[case].containers():
            if owner["kind"] == "Deployment":
                settings = load_settings(CompensatorSettings, "compensator", given_to(container, files))
                assert settings.redis_url is not None
                assert settings.redis_url.get_secret_value() == url
                assert settings.redis_ssl_ca_location == f"{files}/redis-tls/ca.crt"
    (container,) = [c for owner, c in rendered["sentinels"].containers() if owner["kind"] == "Deployment"]
    settings = load_settings(CompensatorSettings, "compensator", given_to(container, files))
    assert (settings.redis_user, settings.redis_sentinel_user) == ("undo", "watcher")
    assert settings.redis_password is not None
    assert settings.redis_password.get_secret_value() == "secret redis password"
    assert settings.redis_ssl_key_location == f"{files}/redis-tls/tls.key"


def test_in_an_upgrade_the_records_of_the_release_are_written(rendered: dict[str, Objects], files: Path) -> None:
    for _, container in rendered["upgrade"].containers():
        assert load_settings(KafkaSettings, "kafka", given_to(container, files)).records_of == "0.1.0"


def test_the_image_is_the_charts_unless_a_lane_has_its_own(rendered: dict[str, Objects]) -> None:
    images = {container["image"] for _, container in rendered["default"].containers()}
    assert images == {f"amends:{VERSION}"}
    images = {container["image"] for _, container in rendered["several lanes"].containers()}
    assert images == {f"amends:{VERSION}", "registry.example/shop:7"}
    images = {container["image"] for _, container in rendered["all"].containers()}
    assert images == {"amends@sha256:" + "a" * 64, "registry.example/shop:7"}


def test_the_chart_knows_the_engines_there_are() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert set(ENGINES) <= set(schema["properties"]["processors"]["properties"]["engine"]["enum"])


def test_the_chart_runs_the_release_that_this_is() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION


# --- secrets and rights ----------------------------------------------------------------------------------------------


def test_no_secret_is_a_value(case: Objects) -> None:
    assert not case.of("Secret", "ConfigMap")
    for _, container in case.containers():
        for variable in container["env"]:
            option = variable["name"].removeprefix("AMENDS_KAFKA__").lower().replace("_", ".")
            if is_secret(option) or variable["name"].endswith(("PASSWORD", "KEY", "TOKEN")):
                assert "value" not in variable, variable["name"]
            assert "@" not in variable.get("value", "")


def test_no_part_has_a_right_it_does_not_need(case: Objects) -> None:
    assert not case.of("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Ingress")
    for account in case.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for _, template in case.pods():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all("hostPath" not in volume for volume in pod["volumes"])
    for _, container in case.containers():
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["privileged"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]


# --- pods, their names, their ends -----------------------------------------------------------------------------------


def fits(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_selectors_find_the_pods_they_are_for_and_no_others(case: Objects) -> None:
    pods = {owner["metadata"]["name"]: template["metadata"]["labels"] for owner, template in case.pods()}
    for found in case.of("StatefulSet", "Deployment", "PodDisruptionBudget"):
        selector = found["spec"]["selector"]["matchLabels"]
        assert [name for name, labels in pods.items() if fits(selector, labels)] == [found["metadata"]["name"]]
    for service in case.of("Service"):
        assert [name for name, labels in pods.items() if fits(service["spec"]["selector"], labels)] == [
            service["metadata"]["name"]
        ]
    for policy in case.of("NetworkPolicy"):
        selected = [name for name, labels in pods.items() if fits(policy["spec"]["podSelector"]["matchLabels"], labels)]
        assert selected
    for owner, template in case.pods():
        for constraint in template["spec"].get("topologySpreadConstraints", []):
            assert fits(constraint["labelSelector"]["matchLabels"], pods[owner["metadata"]["name"]])


def test_what_runs_for_long_has_a_budget_for_disruptions(case: Objects) -> None:
    budgets = {found["metadata"]["name"]: found["spec"] for found in case.of("PodDisruptionBudget")}
    assert set(budgets) == {found["metadata"]["name"] for found in case.of("StatefulSet", "Deployment")}
    assert all(budget["maxUnavailable"] == 1 for budget in budgets.values())


def test_a_processor_is_a_static_member_under_the_name_of_its_pod(case: Objects) -> None:
    for owner, container in case.containers():
        instance = environment(container).get("AMENDS_PROCESSOR__INSTANCE_ID")
        if owner["kind"] == "StatefulSet":
            assert instance == "field metadata.name"
            assert owner["spec"]["serviceName"] in {service["metadata"]["name"] for service in case.of("Service")}
        else:  # a pod of a Deployment never comes back under its name
            assert instance is None
            assert "AMENDS_COMPENSATOR__INSTANCE_ID" not in environment(container)


def test_a_compensator_gets_the_time_to_end_what_it_began(case: Objects, files: Path) -> None:
    for owner, container in case.containers():
        if owner["kind"] != "Deployment":
            continue
        settings = load_settings(CompensatorSettings, "compensator", given_to(container, files))
        given_s = owner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert given_s * 1_000 >= settings.drain_ms + 10_000


def test_probes_ask_for_progress(case: Objects) -> None:
    for owner, container in case.containers():
        if owner["kind"] == "Job":
            continue
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = "/healthz" if probe == "readinessProbe" else "/livez"
            assert container[probe]["httpGet"] == {"path": asked, "port": "health"}
        assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 120


def test_the_monitor_and_the_policies_name_a_port_that_is_there(rendered: dict[str, Objects]) -> None:
    case = rendered["watched"]
    (monitor,) = case.of("PodMonitor")
    assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ["health"]
    policies = {found["metadata"]["name"]: found["spec"] for found in case.of("NetworkPolicy")}
    assert set(policies) == {"try-amends-processor", "try-amends-compensator", "try-amends-topics"}
    assert policies["try-amends-topics"]["ingress"] == []
    assert policies["try-amends-processor"]["ingress"][0]["ports"] == [{"port": "health", "protocol": "TCP"}]
    assert {"ports": [{"port": 9092, "protocol": "TCP"}]} in policies["try-amends-processor"]["egress"]


def test_topics_are_made_before_the_parts_start(rendered: dict[str, Objects]) -> None:
    (job,) = rendered["default"].of("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "default", "ours is not there yet"
    (job,) = rendered["upgrade"].of("Job")
    assert "annotations" not in job["metadata"]
    assert not rendered["lanes of another team"].of("Job", "StatefulSet")


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"procesors": {}}, "procesors"),
    "an unknown value inside": ({"processors": {"replica": 3}}, "replica"),
    "an unknown value of a lane": ({"compensators": {"payments": {"moduls": ["a"]}}}, "moduls"),
    "no brokers": ({"kafka": {"bootstrapServers": ""}}, "kafka.bootstrapServers is wanted"),
    "no Redis": ({"redis": {"url": ""}}, "redis.url or redis.existingSecret is wanted"),
    "a lane without modules": ({"compensators": {"crm": {}}}, "compensators.crm.modules is wanted"),
    "a password in a URL": ({"redis": {"url": "redis://:pw@redis:6379"}}, "/redis/url"),
    "a password as an option": ({"kafka": {"options": {"sasl.password": "pw"}}}, "sasl.password"),
    "an option twice": (
        {"kafka": {"options": {"client.id": "a"}, "secretOptions": {"client.id": {"name": "a", "key": "b"}}}},
        "client.id is an option and a secret option",
    ),
    "half a certificate of Redis": (
        {"redis": {"tls": {"existingSecret": "tls", "privateKeyKey": "tls.key"}}},
        "redis.tls: certificateKey and privateKeyKey, both or neither",
    ),
    "half a certificate of the registry": (
        {"schemaRegistry": {"url": "https://r", "tls": {"existingSecret": "tls", "certificateKey": "tls.crt"}}},
        "schemaRegistry.tls: certificateKey and privateKeyKey, both or neither",
    ),
    "half a certificate": (
        {"kafka": {"tls": {"existingSecret": "tls", "certificateKey": "tls.crt"}}},
        "certificateKey and privateKeyKey, both or neither",
    ),
    "root": ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
    "an unknown engine": ({"processors": {"engine": "flink"}}, "engine"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_values_are_refused_by_name(helm: Helm, what: str) -> None:
    values, words = REFUSED[what]
    assert words in helm.refusal(merged(DEFAULT, values))


def test_without_a_lane_nothing_is_rendered(helm: Helm) -> None:
    assert "no lane" in helm.refusal({**DEFAULT, "compensators": {}})
