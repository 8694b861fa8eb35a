"""The Helm chart: what it renders is valid, locked in, and fits the programs in its pods."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import typer
import yaml

from api.routes.table import TABLE
from headrace.cli.main import every_command
from headrace.config.model.catalog import load_catalog
from headrace.config.settings import (
    OTHER_VARIABLES,
    VARIABLES,
    Settings,
    load_settings,
)
from headrace.schema.operation import Demand
from headrace.server import components
from headrace.server.extension import processes
from headrace.server.gpus import Device
from tests.harness.deploy.helm import CHART, MANIFESTS, helm, manifests, pods, rendered, require
from tests.harness.servers.up import ROOT

COMMANDS: Any = typer.main.get_command(every_command())
LINES_MAX = 1500
VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34")
#: The tag of the images by default.
CHART_VERSION: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
GPU = {
    "models": {
        "digits": {"handler": "digits"},
        "writer": {"handler": "language_model", "timeout_s": 300.5, "load": "on_demand"},
        "slow": {"handler": "../models/slow.py", "timeout_s": 1200, "labels": ["zone=b"]},
    },
    "pipelines": {"both": {"stages": {"a": {"model": "digits"}}}},
    "settings": {"log_format": "json", "timeout_s": 45, "auth": "on"},
    "files": {"words.py": "class Words: pass\n"},
    "redis": {"existingSecret": "redis", "server": {"enabled": False}},
    "webhooks": {"existingSecret": "hooks"},
    "s3": {"existingSecret": "s3"},
    "api": {"autoscaling": {"enabled": True}},
    "ingress": {
        "enabled": True, "className": "nginx", "host": "headrace.example", "tlsSecret": "tls",
    },
    "workers": [
        {"name": "cpu", "replicas": 0, "labels": ["zone=a"], "pdb": {"enabled": False}},
        {
            "name": "gpu", "models": ["writer"], "workers": 2,
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia", "shm": "8Gi",
            "modelsVolume": {"persistentVolumeClaim": {"claimName": "models"}},
            "keda": {"scale": "object", "target": 50},
        },
        {
            "name": "mig", "models": ["slow", "digits"], "labels": ["zone=b"],
            "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1, "memory": "8Gi"}},
            "modelsVolume": {"emptyDir": {}},
            "initContainers": [
                {"name": "fetch", "image": "fetch:1", "volumeMounts": [
                    {"name": "models", "mountPath": "/models"}]},
            ],
            "keda": {"scale": "job", "target": 1, "maxReplicas": 3},
        },
    ],
    "flower": {"enabled": True, "existingSecret": "flower"},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True, "runbooks": "https://docs.example/operations.md"},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"apiFrom": [{"namespaceSelector": {}}]},
    "test": {"model": "digits"},
}  # fmt: skip
SMALL = {
    "settings": {"auth": "off"}, "keys": [], "networkPolicy": {"enabled": False},
    "api": {"replicas": 1, "stopDelaySeconds": 0},
    "background": {"enabled": False}, "runner": {"enabled": False},
    "models": {"echo": {"handler": "echo"}, "digits": {"handler": "digits"}},
    "workers": [{"name": "all", "shm": "", "keda": {"scale": "object", "minReplicas": 1}}],
    "redis": {"server": {"persistence": {"enabled": False}}},
}  # fmt: skip
#: Values that show each branch of the chart.
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "gpu": GPU,
    "small": SMALL,
    "variables": {
        **GPU, "secretsAs": "variable", "apply": {"enabled": True},
        "redis": {"existingSecret": "redis", "server": {"enabled": True}},
    },
    "external": {"redis": {"url": "redis://redis.example:6379/0", "server": {"enabled": False}}},
}  # fmt: skip
#: The schemas of KEDA's definitions.
KEDA: dict[str, Any] = json.loads((ROOT / "tests/harness/deploy/keda-2.16.json").read_text())


@pytest.fixture(params=MATRIX, scope="module")
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(MATRIX[request.param])


@pytest.fixture(scope="module")
def validate() -> Iterator[Any]:
    """Kubernetes-validate, which else reads all definitions of a version for each object."""
    utils = pytest.importorskip("kubernetes_validate").utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield utils.validate


def by_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def ours(objects: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The pods that run Headrace, by name, each with its container; Redis is not ours."""
    return {
        name: (pod, pod["spec"]["containers"][0])
        for name, pod in pods(objects).items()
        if not name.endswith("-redis") or "test" in name
    }


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


def parsed(words: list[str]) -> str:
    """Parse a command of Headrace as the command line does; return its name."""
    assert words[0] == "headrace", words
    command, words = COMMANDS, words[1:]
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context(command.name, list(words)).close()
    return str(command.name)


def test_the_values_and_their_schema_have_the_same_keys() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    check = jsonschema.Draft7Validator(SCHEMA)
    for values in (DEFAULTS, *MATRIX.values()):
        check.validate(values)
    wrong = copy.deepcopy(GPU)
    wrong["workers"][1]["keda"]["minReplica"] = "1"  # type: ignore[index]
    assert "'minReplica' was unexpected" in str(next(check.iter_errors(wrong)))
    assert not check.is_valid({"settings": {"auth": False}})

    def compare(schema: dict[str, Any], values: Any, at: str) -> None:
        if "allOf" in schema:
            schema = schema["allOf"][0]
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        # What Kubernetes or Headrace defines is free here.
        if schema.get("additionalProperties") is False and at != "resources":
            known = schema["properties"]
            # A pool has a name, and the defaults of pools have none.
            assert known.keys() - {"claims", "global", "name"} == values.keys(), at
            for name in values:
                compare(known[name], values[name], name)

    compare(SCHEMA, DEFAULTS, "values")


def test_the_chart_is_small_and_copies_nothing() -> None:
    files = [path for path in CHART.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(len(path.read_text().splitlines()) for path in files) <= LINES_MAX
    links = {path.name: path.resolve() for path in CHART.rglob("*") if path.is_symlink()}
    deploy = ROOT / "deploy"
    assert links == {
        "headrace.rules.yml": deploy / "prometheus/headrace.rules.yml",
        "dashboard.json": deploy / "grafana/dashboards/headrace.json",
    }


@pytest.mark.parametrize("name", MATRIX)
def test_helm_finds_nothing(name: str) -> None:
    status, text, errors = helm("lint", "--strict", str(CHART), values=MATRIX[name])
    assert status == 0, text + errors
    assert "[WARNING]" not in text


def test_kubernetes_and_keda_know_every_field(objects: list[dict[str, Any]], validate: Any) -> None:
    for one in copy.deepcopy(objects):
        group = one["apiVersion"].partition("/")[0]
        if group == "keda.sh":
            jsonschema.validate(one["spec"], KEDA[one["kind"]])
            if one["kind"] != "ScaledJob":
                continue
            # What it starts is a Job.
            one |= {"apiVersion": "batch/v1", "kind": "Job", "spec": one["spec"]["jobTargetRef"]}
        elif group == "monitoring.coreos.com":
            continue
        for version in VERSIONS:
            validate(one, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    objects = rendered(GPU)
    for kind, field, value, message in (
        ("ScaledObject", "cooldownPeriod", "300", "'300' is not of type 'integer'"),
        ("ScaledJob", "pollInterval", 10, "'pollInterval' was unexpected"),
    ):
        (scaled, *_) = by_kind(objects, kind).values()
        scaled["spec"][field] = value
        with pytest.raises(jsonschema.ValidationError, match=message):
            jsonschema.validate(scaled["spec"], KEDA[kind])
    validation = pytest.importorskip("kubernetes_validate")
    (one, *_) = by_kind(rendered(), "Deployment").values()
    one["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(validation.ValidationError, match="enableServiceLink"):
        validation.validate(one, VERSIONS[-1], strict=True)


def test_every_command_and_variable_is_ours(objects: list[dict[str, Any]]) -> None:
    used = set()
    for name, (_, container) in ours(objects).items():
        words = container["command"]
        if name.endswith("-keys"):
            assert words[:2] == ["python3", "/etc/headrace/files/create_keys.py"]
        else:
            used.add(parsed(words))
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            check = container.get(probe, {})
            if "exec" in check:
                assert parsed(check["exec"]["command"]) == "health"
                assert check["timeoutSeconds"] > 4
            elif check:
                path = check["httpGet"]["path"]
                known = {one.path for one in TABLE} | {"/healthcheck"}
                assert path in known
        for variable in environment(container):
            secret = variable.removesuffix("_FILE")
            assert secret in VARIABLES.keys() | OTHER_VARIABLES | {"FLOWER_BASIC_AUTH"}, variable
        settings = {k: v for k, v in environment(container).items() if k in VARIABLES}
        load_settings(None, {k: v for k, v in settings.items() if v}, {})
    assert {"api", "worker", "health"} <= used


def test_every_pod_is_locked_in(objects: list[dict[str, Any]]) -> None:
    release = rendered_accounts(objects)
    for name, pod in pods(objects).items():
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is name.endswith("-keys")
        assert spec["serviceAccountName"] in release
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {one["name"] for one in spec["volumes"]}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"]["limits"]["memory"]
            mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            # The claim of Redis is beside its pod.
            assert mounted.keys() - {"data"} == volumes - {"data"}
            assert mounted["tmp"] == "/tmp"
    for pod, container in ours(objects).values():
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001
        assert {one["name"]: one["mountPath"] for one in container["volumeMounts"]}["home"] == (
            "/var/lib/headrace"
        )
    # Each Service leads to pods that there are, and a selector finds those of one Deployment.
    labels = [pod["metadata"]["labels"] for pod in pods(objects).values()]
    for service in by_kind(objects, "Service").values():
        wanted = service["spec"]["selector"].items()
        assert sum(wanted <= one.items() for one in labels) == 1
    for deployment in by_kind(objects, "Deployment").values():
        wanted = deployment["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= one.items() for one in labels) == 1


def rendered_accounts(objects: list[dict[str, Any]]) -> set[str]:
    return set(by_kind(objects, "ServiceAccount"))


def test_there_is_time_to_stop_in_order(objects: list[dict[str, Any]]) -> None:
    for name, (pod, container) in ours(objects).items():
        values = environment(container)
        environ = {key: value for key, value in values.items() if value}
        settings = load_settings(None, {k: v for k, v in environ.items() if k in VARIABLES}, {})
        environ = {"HEADRACE_REDIS_URL": ""}
        part = name.removeprefix("headrace-").partition("-")[0]
        wanted: Any = {
            "api": components.API_STOP_S + settings.stop_delay_s,
            "worker": components.worker_child(Device("c", ""), settings, environ, print),
            "background": components.background_child(settings, environ, print),
            "runner": processes()["runner"],
            "flower": components.flower_child(settings, environ),
        }.get(part, 0.0)
        stop_s = wanted if isinstance(wanted, float) else wanted.stop_timeout_s
        assert pod["spec"]["terminationGracePeriodSeconds"] > stop_s, name


def test_a_pool_drains_as_long_as_its_models_may_run() -> None:
    drains = {
        name: environment(container)["HEADRACE_DRAIN_TIMEOUT_S"]
        for name, (_, container) in ours(rendered(GPU)).items()
        if "-worker-" in name
    }
    # The pool `cpu` has no model left; the setting is 45 s.
    assert drains == {
        "headrace-worker-cpu": "45", "headrace-worker-gpu": "301", "headrace-worker-mig": "1200",
    }  # fmt: skip
    (_, worker) = ours(rendered())["headrace-worker-default"]
    assert float(environment(worker)["HEADRACE_DRAIN_TIMEOUT_S"]) == Settings().timeout_s


def test_a_model_runs_in_the_pool_that_lists_it(tmp_path: Path) -> None:
    values = {**GPU, "pipelines": {}}
    objects = rendered(values)
    data = by_kind(objects, "ConfigMap")["headrace-configs"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    assert set(data) == {"models.yaml", "settings.yaml", "words.py"}
    settings = load_settings(None, {"HEADRACE_CONFIG": str(tmp_path / "settings.yaml")}, {})
    assert (settings.timeout_s, settings.auth, settings.log_format) == (45, "on", "json")
    models = load_catalog(tmp_path / "models.yaml").models
    pools = {
        name.removeprefix("headrace-worker-"): set(
            environment(container)["HEADRACE_WORKER_LABELS"].split(",")
        )
        for name, (_, container) in ours(objects).items()
        if "-worker-" in name
    }
    served = {
        pool: {name for name, model in models.items() if set(model.labels) <= labels}
        for pool, labels in pools.items()
    }
    assert served == {"cpu": set(), "gpu": {"writer"}, "mig": {"slow", "digits"}}
    strategies = {
        name: one["spec"].get("strategy") for name, one in by_kind(objects, "Deployment").items()
    }
    assert strategies["headrace-worker-gpu"]["rollingUpdate"]["maxSurge"] == 0
    assert strategies["headrace-worker-cpu"] is None
    (plain,) = [
        container for name, (_, container) in ours(rendered(SMALL)).items() if "-worker-" in name
    ]
    assert "HEADRACE_WORKER_LABELS" not in environment(plain)


def test_a_secret_is_a_file_or_a_variable_and_nothing_else() -> None:
    wanted = {
        "HEADRACE_REDIS_URL": {"api", "worker", "background", "runner", "flower"},
        "HEADRACE_WEBHOOK_SECRETS": {"api", "background"},
        "FLOWER_BASIC_AUTH": {"flower"},
    }
    names = {
        "HEADRACE_REDIS_URL": "redis", "HEADRACE_WEBHOOK_SECRETS": "hooks",
        "FLOWER_BASIC_AUTH": "flower",
    }  # fmt: skip
    files = ours(rendered(GPU))
    variables = ours(rendered(MATRIX["variables"]))
    for variable, parts in wanted.items():
        for found in (files, variables):
            having = {
                name.removeprefix("headrace-").partition("-")[0]
                for name, (_, container) in found.items()
                if {variable, f"{variable}_FILE"} & environment(container).keys()
            }
            assert having - {"keys", "apply", "test"} == parts
        for pod, container in files.values():
            path = environment(container).get(f"{variable}_FILE")
            if path:
                mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
                assert path == f"{mounts['secrets']}/{variable}"
                (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "secrets"]
                sources = [one["secret"] for one in volume["projected"]["sources"]]
                (source,) = [one for one in sources if one["items"][0]["path"] == variable]
                assert source["name"] == names[variable]
        for _, container in variables.values():
            for one in container["env"]:
                if one["name"] == variable:
                    assert one["valueFrom"]["secretKeyRef"]["name"] == names[variable]
    assert not by_kind(rendered(GPU), "Secret")


def test_scaling_asks_for_the_demand_of_each_model() -> None:
    for values in (GPU, SMALL):
        objects = rendered(values)
        services = by_kind(objects, "Service")
        for kind in ("ScaledObject", "ScaledJob"):
            for one in by_kind(objects, kind).values():
                spec = one["spec"]
                asked = []
                for trigger in spec["triggers"]:
                    # KEDA's definitions do not say what a trigger's metadata is.
                    assert trigger["type"] == "metrics-api"
                    metadata = trigger["metadata"]
                    found = re.fullmatch(
                        r"http://([\w-]+)\.ml\.svc:(\d+)(/api/v1/models/)([\w.-]+)(/demand)",
                        metadata["url"],
                    )
                    assert found is not None, metadata["url"]
                    (port,) = services[found[1]]["spec"]["ports"]
                    assert port["port"] == int(found[2])
                    path = f"{found[3]}{{model}}{found[5]}"
                    assert path in {operation.path for operation in TABLE}
                    assert metadata["valueLocation"] in Demand.__struct_fields__
                    assert float(metadata["targetValue"]) > 0
                    asked.append(found[4])
                if kind == "ScaledObject":
                    deployment = by_kind(objects, "Deployment")[spec["scaleTargetRef"]["name"]]
                    # The autoscaler owns it.
                    assert "replicas" not in deployment["spec"]
                if len(asked) > 1 and kind == "ScaledObject":
                    modifiers = spec["advanced"]["scalingModifiers"]
                    assert modifiers["formula"] == " + ".join(t["name"] for t in spec["triggers"])
                assert set(asked) <= values["models"].keys()  # type: ignore[attr-defined]
    (job,) = by_kind(rendered(GPU), "ScaledJob").values()
    (container,) = job["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
    assert container["command"] == ["headrace", "worker", "--exit-when-idle", "30"]
    assert container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == 1
    assert job["spec"]["scalingStrategy"] == {"strategy": "default"}


def test_releases_share_a_host_by_paths() -> None:
    """The rules of docs/scaling.md, as ingress-nginx applies them."""
    page = (ROOT / "docs/scaling.md").read_text()
    (block,) = re.findall(r"```yaml\n(# helm install vision .*?)```", page, re.DOTALL)
    backends: dict[str, set[str]] = {}
    for release in ("vision", "text"):
        values = yaml.safe_load(block.replace("vision", release))
        (ingress,) = by_kind(rendered(values, release=release), "Ingress").values()
        notes = ingress["metadata"]["annotations"]
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        assert rule["host"] == "headrace.example.com"
        prefix = "nginx.ingress.kubernetes.io/"
        # What event streams need stays.
        assert notes[f"{prefix}proxy-buffering"] == "off"
        assert (notes[f"{prefix}use-regex"], path["pathType"]) == ("true", "ImplementationSpecific")
        target = notes[f"{prefix}rewrite-target"].replace("$", "\\")
        for operation in TABLE:
            sent = f"/{release}{operation.path}"
            assert re.sub(f"^{path['path']}", target, sent) == operation.path
            if re.match(path["path"], sent):
                backends.setdefault(sent, set()).add(path["backend"]["service"]["name"])
            other = sent.replace(release, f"{release}s", 1)
            assert not re.match(path["path"], other)
        back = notes[f"{prefix}proxy-redirect-to"], notes[f"{prefix}proxy-redirect-from"]
        assert back == (f"/{release}/", "/")
    assert len(backends) == 2 * len({operation.path for operation in TABLE})
    assert all(names == {f"{sent.split('/')[1]}-headrace-api"} for sent, names in backends.items())


def test_only_this_release_reaches_redis_and_nothing_reaches_workers() -> None:
    objects = rendered({**GPU, "redis": {"server": {"enabled": True}}})
    own = {"podSelector": {"matchLabels": {
        "app.kubernetes.io/name": "headrace", "app.kubernetes.io/instance": "headrace",
    }}}  # fmt: skip
    admitted: dict[str, list[Any]] = {}
    for name, one in by_kind(objects, "NetworkPolicy").items():
        for pod_name, pod in pods(objects).items():
            wanted = one["spec"]["podSelector"]["matchLabels"].items()
            if wanted <= pod["metadata"]["labels"].items():
                admitted.setdefault(pod_name, []).extend(one["spec"].get("ingress", []))
        assert one["spec"]["policyTypes"] == ["Ingress"], name
    assert admitted.keys() == pods(objects).keys()
    assert {name: rules for name, rules in admitted.items() if rules} == {
        "headrace-redis": [{"ports": [{"port": "redis"}], "from": [own]}],
        # The runner and `helm test` are of this release.
        "headrace-api": [{"ports": [{"port": "http"}], "from": [own, {"namespaceSelector": {}}]}],
        "headrace-flower": [{"ports": [{"port": "http"}]}],
    }


def test_monitoring_is_what_deploy_has() -> None:
    objects = rendered(GPU)
    (rules,) = by_kind(objects, "PrometheusRule").values()
    source = (ROOT / "deploy/prometheus/headrace.rules.yml").read_text()
    label = "{{ $externalLabels.runbooks }}"
    runbooks = GPU["monitoring"]["rules"]["runbooks"]  # type: ignore[index]
    assert rules["spec"] == yaml.safe_load(source.replace(label, runbooks))
    assert "externalLabels" not in json.dumps(rules)
    dashboard = by_kind(objects, "ConfigMap")["headrace-dashboard"]["data"]["headrace.json"]
    assert json.loads(dashboard) == json.loads(
        (ROOT / "deploy/grafana/dashboards/headrace.json").read_text()
    )
    (monitor,) = by_kind(objects, "ServiceMonitor").values()
    labels = by_kind(objects, "Service")["headrace-api"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # The alert of a lost API asks for this name.
    assert labels[monitor["spec"]["jobLabel"]] == "headrace"
    assert "headrace-key-metrics" in json.dumps(monitor)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"redis": {"url": "redis://:x@h/0", "server": {"enabled": False}}}, "has a password"),
        ({"redis": {"url": "redis://h/0"}}, "redis.server.enabled to false"),
        ({"redis": {"server": {"enabled": False}}}, "there is no Redis"),
        ({"flower": {"enabled": True}}, "needs flower.existingSecret"),
        ({"ingress": {"enabled": True}}, "needs ingress.host"),
        ({"workers": [{"name": "a", "models": ["gone"]}]}, "names the model gone"),
        ({"workers": [{"name": "a", "keda": {"scale": "object"}}]}, "needs `models`"),
        (
            {"models": {"a": {}, "b": {}}, "workers": [{"name": "p", "models": ["a"]}]},
            "the model b is in no pool",
        ),
        ({"workers": [{"name": "a", "replica": 2}]}, "'replica' not allowed"),
        ({"workers": [{"models": ["a"]}]}, "missing property 'name'"),
        ({"workers": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "the name a is there twice"),
        ({"workers": [{"name": "a", "labels": ["gpu=a 100"]}]}, "does not match pattern"),
        (
            {
                "models": {"a": {}},
                "workers": [{"name": "p", "keda": {"scale": "job", "minReplicas": 9}}],
            },
            "more keda.minReplicas than keda.maxReplicas",
        ),
        ({"workerDefaults": {"name": "a"}}, "/workerDefaults/name"),
        ({"api": {"autoscaling": {"enabled": True, "minReplicas": 11}}}, "greater than max"),
        ({"redis": {"server": {"maxmemory": "1500mb"}}}, "less than 1.5 times maxmemory 1500mb"),
        ({"pipelines": {"p": {}}}, "pipelines without models"),
        ({"workerDefaults": {"models": ["gone"]}}, "pool default names the model gone"),
        # The chart sets these itself, or the probes would fail.
        ({"settings": {"redis_url": "redis://h"}}, "see redis.url or redis.existingSecret"),
        ({"settings": {"tls_cert_file": "a.pem"}}, "see ingress.tlsSecret"),
        ({"settings": {"drain_timeout_s": 9}}, "see drainSeconds"),
        ({"image": {"tag": 1.1}}, "/image/tag"),
        ({"image": {"tag": 2**60}}, "/image/tag"),
        ({"keys": [], "monitoring": {"serviceMonitor": {"enabled": True}}}, "need an API key"),
        ({**GPU, "keys": [{"name": "mine", "scopes": ["read"]}]}, "need an API key"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], message: str) -> None:
    status, _, errors = helm("template", "headrace", str(CHART), values=values)
    assert status != 0
    assert message in errors


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        (42, "42"),
        (42_000_000, "42000000"),
        (20_261_130_123_456, "20261130123456"),
        (0, "0"),
        ("1.10", "1.10"),
        ("", CHART_VERSION),
        (None, CHART_VERSION),
    ],
)
@pytest.mark.parametrize("by", ["file", "argument"])
def test_a_tag_may_be_a_number(tag: int | str | None, shown: str, by: str) -> None:
    if by == "file":
        objects = rendered({"image": {"tag": tag}})
    else:
        objects = rendered(None, "--set", f"image.tag={'null' if tag is None else tag}")
    images = [
        container["image"]
        for pod in pods(objects).values()
        for container in pod["spec"]["containers"]
        if container["image"].startswith("headrace-")
    ]
    assert images
    assert {image.partition(":")[2] for image in images} == {shown}
    versions = {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in objects}
    assert versions == {shown}


LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
SERVICE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def label_values(value: Any) -> Iterator[str]:
    """The labels of an object and of what it starts or selects."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("labels", "matchLabels") and isinstance(inner, dict):
                yield from inner.values()
            else:
                yield from label_values(inner)
    elif isinstance(value, list):
        for one in value:
            yield from label_values(one)


@pytest.mark.parametrize(
    ("release", "values"),
    # The names of pools need room, so that the longest name has none.
    [("ml.eu-1.prod", GPU), ("a" * 26, GPU), ("headrace." + "x-" * 21 + "y", {"workers": []})],
)
def test_any_name_of_a_release_and_any_tag_makes_valid_names(
    release: str, values: dict[str, Any]
) -> None:
    objects = rendered({**values, "image": {"tag": "1.0-rc@sha256:" + "ab" * 32}}, release=release)
    for one in objects:
        assert SERVICE.fullmatch(one["metadata"]["name"]), one["metadata"]["name"]
        for label in label_values(one):
            assert LABEL.fullmatch(label), label
    (_, api) = next(pod for name, pod in ours(objects).items() if name.endswith("-api"))
    assert api["image"] == "headrace-api:1.0-rc@sha256:" + "ab" * 32
    status, _, errors = helm("template", "1" + release, str(CHART))
    assert status != 0
    assert "begins with a digit" in errors


def test_two_releases_in_a_namespace_share_no_object() -> None:
    names = [
        {(one["kind"], one["metadata"]["name"]) for one in rendered(GPU, release=release)}
        for release in ("headrace", "headrace-b", "b")
    ]
    assert len(set.union(*names)) == sum(map(len, names))


@pytest.mark.parametrize(
    ("maxmemory", "limit", "fits"),
    [
        ("1gb", ..., True),
        ("1gb", "1536Mi", True), ("1gb", "1535Mi", False), ("1g", "1500M", True),
        ("0", "1Mi", True),
        ("1000", 1500, True), ("2g", 2_999_999_999, False), ("2g", "3e9", True), ("2g", "", True),
        ("1gb", "1.5Gi", True), ("1gb", None, True),
    ],
)  # fmt: skip
def test_redis_has_room_for_a_rewrite_of_its_file(maxmemory: str, limit: Any, fits: bool) -> None:
    resources = None if limit is ... else {"limits": {"memory": limit}}
    server = {"maxmemory": maxmemory, "resources": resources}
    status, _, errors = helm("template", "a", str(CHART), values={"redis": {"server": server}})
    assert (status == 0) is fits, errors


def test_the_defaults_of_pools_may_list_models() -> None:
    values = {
        "models": {"a": {"handler": "echo"}, "b": {"handler": "echo"}},
        "workers": [{"name": "one"}, {"name": "rest", "models": []}],
        "workerDefaults": {"models": ["a"]},
    }
    objects = ours(rendered(values))
    assert {
        pool: environment(objects[f"headrace-worker-{pool}"][1])["HEADRACE_WORKER_LABELS"]
        for pool in ("one", "rest")
    } == {"one": "model=a", "rest": "model=b"}


def test_no_replicas_are_none() -> None:
    values = {"api": {"replicas": 0}, "background": {"replicas": 0}, "runner": {"replicas": 0}}
    objects = by_kind(rendered({**values, "workerDefaults": {"replicas": 0}}), "Deployment")
    assert {one["spec"]["replicas"] for one in objects.values()} == {0}


def test_each_reader_gets_a_key_that_fits() -> None:
    """`helm test` submits with a key that may, and `secretKey` is of the operator's Secret only."""
    keys = [{"name": "metrics", "scopes": ["read"]}, {"name": "me", "scopes": ["read", "submit"]}]
    monitoring = {"serviceMonitor": {"enabled": True}}
    for keda, wanted in (
        ({"secretKey": "token"}, {"name": "headrace-key-metrics", "key": "key"}),
        ({"secretKey": "token", "existingSecret": "mine"}, {"name": "mine", "key": "token"}),
    ):
        objects = rendered({**GPU, "keys": keys, "keda": keda, "monitoring": monitoring})
        (monitor,) = by_kind(objects, "ServiceMonitor").values()
        assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"] == wanted
        (trigger,) = by_kind(objects, "TriggerAuthentication").values()
        assert trigger["spec"]["secretTargetRef"] == [{"parameter": "token", **wanted}]
    assert "headrace-key-me" in json.dumps(pods(objects)["headrace-test-job"])
    assert "headrace-test-job" not in pods(rendered({"keys": keys[:1]}))


def test_the_notes_have_the_next_two_commands(tmp_path: Path) -> None:
    # Helm prints notes only with a cluster, so here they are a template.
    chart = shutil.copytree(CHART, tmp_path / "headrace")
    notes = chart / "templates" / "NOTES.txt"
    text = f"{{{{ define `notes` }}}}{notes.read_text()}{{{{ end }}}}"
    (chart / "templates" / "notes.yaml").write_text(
        f"{text}kind: Notes\nmetadata: {{name: notes}}\ntext: {{{{ include `notes` . | quote }}}}\n"
    )
    for values, second in ((None, "kubectl get secret headrace-key-client"), (SMALL, "kubectl")):
        status, shown, errors = helm(
            "template", "headrace", str(chart), "--show-only", "templates/notes.yaml",
            values=values,
        )  # fmt: skip
        assert status == 0, errors
        commands = re.findall(r"^  (\w.*)$", yaml.safe_load(shown)["text"], re.MULTILINE)
        assert len(commands) == 2
        assert commands[0].startswith("helm test headrace --namespace")
        assert commands[1].startswith(second)


def test_plain_manifests_are_those_of_the_chart() -> None:
    # Versions of Helm differ in white space.
    written, wanted = (
        [one for one in yaml.safe_load_all(text) if one]
        for text in ((MANIFESTS / "headrace.yaml").read_text(), manifests())
    )
    assert written == wanted, "run make manifests"
    built = subprocess.run(
        [require("kubectl"), "kustomize", str(MANIFESTS)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    objects = list(yaml.safe_load_all(built.stdout))
    images = {c["image"] for pod in pods(objects).values() for c in pod["spec"]["containers"]}
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    named = {f"{one['name']}:{one['newTag']}" for one in kustomization["images"]}
    assert named == {image for image in images if image.startswith("headrace")}
