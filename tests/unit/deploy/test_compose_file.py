"""The Compose files and .env.example say what they promise, as Compose would read them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from headrace.cli.doctor import configuration
from headrace.config.environment import ENV_URL
from headrace.config.model.catalog import load_catalog
from headrace.config.model.handler_reference import parse_handler
from headrace.config.settings import (
    ENV_PREFIX,
    FIELDS,
    OTHER_VARIABLES,
    VARIABLES,
    Settings,
    load_settings,
)
from headrace.server import components
from headrace.server.extension import processes
from headrace.server.gpus import Device
from headrace.server.health import probe
from tests.harness.deploy import compose_file
from tests.harness.deploy.compose_file import seconds

ROOT = Path(__file__).parents[3]
CPU = [ROOT / "docker-compose.yml"]
GPU = [*CPU, ROOT / "deploy/compose.gpu.yml"]
MONITORED = [*CPU, ROOT / "deploy/compose.monitoring.yml"]
PRODUCTION = [*CPU, ROOT / "deploy/compose.production.yml"]
#: What has no default where it is wanted, so that nobody forgets it.
WANTED = {
    "REDIS_PASSWORD": "s3cret", "REDIS_MAXMEMORY": "2gb", "REDIS_MEMORY": "3g",
    "WORKER_MEMORY": "8g", "FLOWER_BASIC_AUTH": "me:it", "GRAFANA_PASSWORD": "g",
}  # fmt: skip
#: The secrets that .env passes on, and the services that get them.
SECRETS = {
    "FLOWER_BASIC_AUTH": {"flower"},
    "HEADRACE_WEBHOOK_SECRETS": {"api", "background"},
    "AWS_ACCESS_KEY_ID": {"api", "worker", "background", "runner"},
    "AWS_SECRET_ACCESS_KEY": {"api", "worker", "background", "runner"},
    "AWS_SESSION_TOKEN": {"api", "worker", "background", "runner"},
}
PARTS = ("api", "worker", "background", "runner", "flower")
EXAMPLES = (ROOT / ".env.example", ROOT / "settings.env.example")


def services(files: list[Path], **variables: str) -> dict[str, Any]:
    if files == MONITORED:
        variables = {"GRAFANA_PASSWORD": "g", **variables}
    found: dict[str, Any] = compose_file.load(files, variables)["services"]
    return found


def examples(file: Path = EXAMPLES[0]) -> dict[str, str]:
    """The variables of an example, each of which is commented out."""
    lines = [line for line in file.read_text().splitlines() if re.match(r"#?\w+=", line)]
    assert all(line.startswith("#") for line in lines), "an uncommented line changes the default"
    return dict(line[1:].split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-${A}", "a-a"),
        ("$$A $${A}", "$A ${A}"),
        ("${NONE}x$NONE", "x"),
        ("${A:-b}${NONE:-b}${EMPTY:-b}", "abb"),
        ("${A-b}${NONE-b}${EMPTY-b}", "ab"),
        ("${A:+b}${NONE:+b}${EMPTY:+b}", "b"),
        ("${A+b}${NONE+b}${EMPTY+b}", "bb"),
        ("redis://${A:+:${A}@}host", "redis://:a@host"),
        ("redis://${EMPTY:+:${A}@}host", "redis://host"),
        ("${NONE:-${NONE:-${A}}}", "a"),
        ("${A:?say it}", "a"),
    ],
)
def test_interpolation(text: str, value: str) -> None:
    assert compose_file.interpolated([text], {"A": "a", "EMPTY": ""}) == [value]


@pytest.mark.parametrize("text", ["$", "$ A", "${A", "${}", "${A!}", "${NONE:?say it}"])
def test_what_cannot_be_interpolated_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"single|closed|no variable|say it"):
        compose_file.interpolated(text, {"A": "a"})


def test_merge() -> None:
    base = {
        "command": ["a", "b"], "dns": ["1"], "environment": {"A": "1", "B": "2"},
        "volumes": ["x:/data", "y:/other:ro"], "healthcheck": {"test": ["CMD", "a"], "retries": 3},
    }  # fmt: skip
    over = {
        "command": ["c"], "dns": ["1", "2"], "environment": {"B": "3"},
        "volumes": ["z:/data"], "healthcheck": {"test": ["CMD", "b"]}, "init": True,
    }  # fmt: skip
    assert compose_file.merge(base, over) == {
        "command": ["c"], "dns": ["1", "2"], "environment": {"A": "1", "B": "3"},
        "volumes": ["y:/other:ro", "z:/data"],
        "healthcheck": {"test": ["CMD", "b"], "retries": 3}, "init": True,
    }  # fmt: skip


def test_plain_up_is_the_whole_thing() -> None:
    found = services(CPU)
    assert set(found) == {"redis", "api", "worker", "background", "runner", "flower"}
    assert not [name for name, spec in found.items() if "profiles" in spec]


def test_redis_keeps_what_it_is_given() -> None:
    redis = services(CPU)["redis"]
    assert re.fullmatch(r"[\w/.-]+:\d+\.\d+[\w.-]*", redis["image"]), "pinned by its tag"
    command = " ".join(redis["command"])
    for option in ("--appendonly yes", "--maxmemory-policy noeviction", "--dir /data"):
        assert option in command
    assert redis["environment"]["APPENDFSYNC"] == "everysec"
    assert redis["volumes"] == ["redis-data:/data"]
    assert "ports" not in redis


@pytest.mark.parametrize(
    "files",
    [CPU, GPU, MONITORED, [*PRODUCTION, MONITORED[1]]],
    ids=["cpu", "gpu", "monitored", "production"],
)
def test_every_service_is_restarted_watched_and_locked_in(files: list[Path]) -> None:
    declared = compose_file.load(files, WANTED)["volumes"]
    for spec in services(files, **WANTED).values():
        assert spec["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
        limits = spec["deploy"]["resources"]["limits"]
        assert limits.keys() == {"cpus", "memory", "pids"}
        assert int(limits["pids"]) > 0
        assert spec["restart"] == "unless-stopped"
        assert spec["read_only"] is True
        assert spec["cap_drop"] == ["ALL"]
        assert spec["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in spec
        assert {"test", "interval", "timeout", "retries", "start_period"} == set(
            spec["healthcheck"]
        )
        for volume in spec["volumes"]:
            source = volume.partition(":")[0]
            ours = (ROOT / source).is_dir() and volume.endswith(":ro")
            assert source in declared or ours, volume
    for name in PARTS:
        spec = services(files, **WANTED)[name]
        # Docker's own first process reaps what a killed part leaves, and hands on signals.
        assert spec["init"] is True
        assert spec["depends_on"]["redis"] == {"condition": "service_healthy"}
        assert seconds(spec["healthcheck"]["timeout"]) > probe.TIMEOUT_S
        assert spec.get("build", {"context": "."})["context"] == "."


def test_ports_are_published_on_loopback_unless_one_says_otherwise() -> None:
    ports = {name: spec.get("ports") for name, spec in services(CPU).items()}
    assert ports == {
        "redis": None, "worker": None, "background": None, "runner": None,
        "api": ["127.0.0.1:8080:8080"], "flower": ["127.0.0.1:5555:5555"],
    }  # fmt: skip
    wide = services(CPU, API_BIND="0.0.0.0", API_PORT="80", FLOWER_BIND="10.0.0.1")
    assert wide["api"]["ports"] == ["0.0.0.0:80:8080"]
    assert wide["flower"]["ports"] == ["10.0.0.1:5555:5555"]
    assert wide["flower"]["command"][-1] == "10.0.0.1"


def test_the_password_reaches_both_ends() -> None:
    found = services(CPU, REDIS_PASSWORD="s3cret")
    assert found["redis"]["environment"]["REDISCLI_AUTH"] == "s3cret"
    assert "s3cret" not in " ".join(found["redis"]["command"])
    for name in PARTS:
        assert found[name]["environment"]["HEADRACE_REDIS_URL"] == "redis://:s3cret@redis:6379/0"
        assert services(CPU)[name]["environment"]["HEADRACE_REDIS_URL"] == "redis://redis:6379/0"


@pytest.mark.parametrize("name", WANTED)
def test_what_an_operator_has_to_say_is_asked_for(name: str) -> None:
    files = [*PRODUCTION, MONITORED[1]]
    for value in ({}, {name: ""}):
        given = {key: other for key, other in WANTED.items() if key != name} | value
        with pytest.raises(ValueError, match=rf"^{name} is not set: set {name}.* in \.env"):
            compose_file.load(files, given)


def test_in_production_passwords_and_memory_are_as_the_operator_says() -> None:
    found = services(PRODUCTION, **WANTED)
    plain = services(CPU, **WANTED)
    assert found["redis"]["environment"] == {
        "APPENDFSYNC": "everysec", "MAXMEMORY": "2gb",
        "REDISCLI_AUTH": "s3cret", "VALKEYCLI_AUTH": "s3cret",
    }  # fmt: skip
    assert found["flower"]["environment"]["FLOWER_BASIC_AUTH"] == "me:it"
    assert found == plain, "the rest is as without the file, where the same is said"
    memory = {name: spec["deploy"]["resources"]["limits"]["memory"] for name, spec in found.items()}
    assert (memory["redis"], memory["worker"]) == ("3g", "8g")
    assert all(value != "0" for value in memory.values())


def test_compose_s_own_schema_knows_what_stands_there(tmp_path: Path) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        message = "check-jsonschema, which has the schema, is not installed: make setup"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    files = [*PRODUCTION, GPU[1], MONITORED[1]]
    merged, broken = tmp_path / "merged.yml", tmp_path / "broken.yml"
    model = compose_file.load(files, WANTED)
    merged.write_text(yaml.safe_dump(model))
    assert not complaints(*files, merged)
    model["services"]["api"]["heathcheck"] = model["services"]["api"].pop("healthcheck")
    broken.write_text(yaml.safe_dump(model))
    assert "heathcheck" in complaints(broken)


def complaints(*files: Path) -> str:
    """What the Compose Specification's JSON schema has against these files."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


def test_there_is_time_to_stop_in_order() -> None:
    found = services(CPU)
    settings, environ = Settings(), {"HEADRACE_REDIS_URL": ""}
    worker = components.worker_child(Device("cpu0", ""), settings, environ, print)
    wanted = {
        "worker": worker.stop_timeout_s,
        "background": components.background_child(settings, environ, print).stop_timeout_s,
        "api": components.API_STOP_S,
        "runner": processes()["runner"].stop_timeout_s,
        "flower": components.flower_child(settings, environ).stop_timeout_s,
    }
    for name, stop_s in wanted.items():
        assert seconds(found[name]["stop_grace_period"]) > stop_s
    longer = services(CPU, WORKER_STOP_GRACE="600s")
    assert longer["worker"]["stop_grace_period"] == "600s"


def test_settings_in_the_compose_file_are_settings() -> None:
    known = VARIABLES.keys()
    for spec in services(GPU).values():
        ours = {name for name in spec["environment"] if name.startswith(ENV_PREFIX)}
        assert ours - {ENV_URL} <= known
    for name in PARTS:
        spec = services(CPU)[name]
        assert spec["env_file"] == [{"path": "settings.env", "required": False}]
        assert spec["pull_policy"] == "never"
        url = load_settings(None, spec["environment"], {}).redis_url
        assert url == "redis://redis:6379/0"


def test_the_gpu_file_changes_the_worker_alone() -> None:
    cpu, gpu = services(CPU), services(GPU)
    assert {name: spec for name, spec in gpu.items() if name != "worker"} == {
        name: spec for name, spec in cpu.items() if name != "worker"
    }
    worker = gpu["worker"]
    assert worker["build"]["args"] == {
        **cpu["worker"]["build"]["args"],
        "BASE_IMAGE": "nvidia/cuda:13.0.2-runtime-ubuntu24.04",
        "TORCH_INDEX": "",
    }
    assert worker["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    ]
    assert "utility" in worker["environment"]["NVIDIA_DRIVER_CAPABILITIES"]
    assert worker["image"] != cpu["worker"]["image"]
    same = ("volumes", "depends_on", "healthcheck", "stop_grace_period", "env_file")
    assert {key: worker[key] for key in same} == {key: cpu["worker"][key] for key in same}


def test_the_example_of_env_names_every_variable_with_its_default() -> None:
    wanted: dict[str, str] = {}
    for file in {*GPU, *MONITORED}:
        wanted |= compose_file.names_in(yaml.safe_load(file.read_text()))
    given = examples()
    assert {name: given.get(name) for name in wanted} == wanted
    fields = {variable: FIELDS[name] for variable, name in VARIABLES.items()}
    asked = compose_file.names_in(yaml.safe_load(PRODUCTION[1].read_text()))
    assert asked.keys() == WANTED.keys() - {"GRAFANA_PASSWORD"}
    assert asked.keys() <= given.keys()
    assert set(given) - set(wanted) == SECRETS.keys()
    settings = examples(EXAMPLES[1])
    assert settings
    for name, text in settings.items():
        assert name in fields, f"{name} is not a setting"
        value = getattr(load_settings(None, {name: text}, {}), fields[name].name)
        assert value == fields[name].default, name
    fixed = set().union(*(spec["environment"] for spec in services(GPU).values()))
    assert not set(settings) & fixed, "what the Compose file sets wins over settings.env"
    assert not set(settings) & OTHER_VARIABLES


def test_a_secret_reaches_only_the_services_that_need_it() -> None:
    secrets = {name: f"the {name}" for name in SECRETS}
    given = {"REDIS_PASSWORD": "redis", "GRAFANA_PASSWORD": "grafana", **secrets}
    found = services([*MONITORED, PRODUCTION[1]], **{**WANTED, **given})
    for name, wanted in SECRETS.items():
        having = {one for one, spec in found.items() if name in spec["environment"]}
        assert having == wanted, name
    assert not any(spec.get("env_file") for name, spec in found.items() if name not in PARTS)
    grafana = {one for one, spec in found.items() if "grafana" in spec["environment"].values()}
    assert grafana == {"grafana"}
    keys = {one for one, spec in found.items() if any("/tls" in v for v in spec.get("volumes", []))}
    assert keys == {"api"}


def test_compose_builds_each_image_once() -> None:
    for files in (CPU, GPU):
        built = [spec["image"] for spec in services(files).values() if "build" in spec]
        assert len(built) == len(set(built))
        ours = {spec["image"] for spec in services(files).values() if "headrace" in spec["image"]}
        assert set(built) == ours


def test_the_example_of_env_changes_nothing() -> None:
    for files in (GPU, MONITORED):
        given = {"GRAFANA_PASSWORD": "g"}
        # A secret has no default; as an empty variable it is not set either.
        shown = {name: text for name, text in examples().items() if name not in SECRETS}
        assert services(files, **{**shown, **given}) == services(files, **given)


def test_monitoring_changes_nothing_else_and_finds_its_parts() -> None:
    plain, found = services(CPU), services(MONITORED)
    assert {name: found[name] for name in plain} == plain
    added = found.keys() - plain.keys()
    assert added == {"prometheus", "alertmanager", "grafana"}
    for name in added:
        spec = found[name]
        assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", spec["image"]), "pinned by its tag"
        assert all(port.startswith("127.0.0.1:") for port in spec["ports"])
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    named = {"api": config["scrape_configs"], "alertmanager": config["alerting"]["alertmanagers"]}
    ports = {name: found[name]["ports"][0].rpartition(":")[2] for name in (*named, "prometheus")}
    for name, ((section,),) in ((name, (sections,)) for name, sections in named.items()):
        assert section["static_configs"][0]["targets"] == [f"{name}:{ports[name]}"]
    provisioning = ROOT / "deploy/grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == f"http://prometheus:{ports['prometheus']}"
    provider = yaml.safe_load((provisioning / "dashboards/headrace.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{folder}:ro" in found["grafana"]["volumes"]


def _packages(extras: list[str]) -> set[str]:
    """The packages that extras of Headrace bring, with those of the extras that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = set()
    for extra in extras:
        for requirement in map(Requirement, project["optional-dependencies"][extra]):
            own = requirement.name == "headrace"
            names |= _packages(sorted(requirement.extras)) if own else {requirement.name}
    return names


def test_the_default_worker_can_run_every_model_of_the_default_models_file() -> None:
    extras = services(CPU)["worker"]["build"]["args"]["EXTRAS"]
    packages = _packages(extras.split(","))
    models = load_catalog(ROOT / "configs/models.yaml").models.values()
    needs = {
        name for one in models for name in configuration.NEEDS[parse_handler(one.handler).target]
    }
    assert "transformers" in needs
    assert {"pillow" if name == "PIL" else name for name in needs} <= packages
    assert f"ARG EXTRAS={extras}" in (ROOT / "deploy/Dockerfile.worker").read_text().splitlines()
