"""Dashboard, rules and routing as they are written, looked at by their own tools."""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.observability.metric_families import FAMILIES
from extensions.torchserve.api import metrics as torchserve
from tests.harness.monitoring.monitoring import DEPLOY, RULES, checked

ROOT = DEPLOY.parent
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/headrace.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
QUERIES = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(rule["expr"] for rule in ALERTS),
]
#: Metrics that other panels use, or that are no question of the dashboard. These are events that
#: Flower does not get, and copies of jobs, which few models have.
NOT_SHOWN = (
    "headrace_host_cpus", "headrace_device_info", "headrace_events_left_out",
    "headrace_shadow_jobs", "headrace_worker_info",
)  # fmt: skip
#: The samples of a metric, by how they end.
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}


def sample_names() -> set[str]:
    return {
        f"{family.shown}{suffix}"
        for family in FAMILIES
        for suffix in SUFFIXES.get(family.kind, ("",))
    }


def places(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return {
        (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    }


def test_the_dashboard_is_what_its_source_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python does it for a program: what lies beside it can be imported.
    monkeypatch.syspath_prepend(DEPLOY / "grafana")
    spec = importlib.util.spec_from_file_location("build", DEPLOY / "grafana" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert build.dashboard() == DASHBOARD, "run python deploy/grafana/build.py"


def test_a_row_for_each_question_with_panels_below_it() -> None:
    assert [row["title"] for row in ROWS] == [
        "Now", "Is it keeping up?", "Is it healthy?", "How fast does it generate?",
        "Is the device busy?", "Which model?", "What failed?",
    ]  # fmt: skip
    tops = [row["gridPos"]["y"] for row in ROWS]
    assert tops == sorted(tops)
    for top, bottom in zip(tops, [*tops[1:], 10_000], strict=True):
        assert sum(top < panel["gridPos"]["y"] < bottom for panel in PANELS) >= 4


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        own = places(panel)
        assert not own & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in own)
        taken |= own


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("stat", "timeseries", "table")
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    refs = [target["refId"] for target in panel["targets"]]
    assert refs == sorted(set(refs))
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert ("legendFormat" in target) is (panel["type"] != "table")
        named = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range"}
        assert named <= {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def test_grafana_knows_every_field() -> None:
    """Its schema, of the version in Compose, reads the dashboard and writes the same."""
    sdk = pytest.importorskip("grafana_foundation_sdk")
    plugins, encoder, models = (
        importlib.import_module(f"{sdk.__name__}.{name}")
        for name in ("cog.plugins", "cog.encoder", "models.dashboard")
    )
    plugins.register_default_plugins()

    def through(dashboard: dict[str, Any]) -> dict[str, Any]:
        read = models.Dashboard.from_json(copy.deepcopy(dashboard))
        written: dict[str, Any] = json.loads(json.dumps(read, cls=encoder.JSONEncoder))
        return written

    assert missing(DASHBOARD, through(DASHBOARD)) == []
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            wrong = copy.deepcopy(panel)
            wrong["options"]["colourMode"] = wrong["targets"][0]["expression"] = "value"
            found = missing(wrong, through({**DASHBOARD, "panels": [wrong]})["panels"][0])
            assert found == [".options.colourMode", ".targets[0].expression"]
    image = yaml.safe_load((DEPLOY / "compose.monitoring.yml").read_text())["services"]["grafana"]
    version = importlib.metadata.version("grafana-foundation-sdk").partition("!")[2]
    assert image["image"].endswith(f":{version}")


def missing(wanted: Any, found: Any, at: str = "") -> list[str]:
    """Where `found` lacks what `wanted` has, or has something else."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        pairs = [(f"{at}.{key}", value, found.get(key)) for key, value in wanted.items()]
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = [(f"{at}[{n}]", *pair) for n, pair in enumerate(zip(wanted, found, strict=True))]
    else:
        return [] if wanted == found else [at]
    return [path for where, a, b in pairs for path in missing(a, b, where)]


def test_every_metric_that_is_asked_for_is_told_and_every_one_is_shown() -> None:
    asked = {name for query in QUERIES for name in re.findall(r"\bheadrace_\w+", query)}
    assert asked <= sample_names()
    shown = {name for query in QUERIES for name in re.findall(r"\bheadrace_\w+", query)}
    for family in FAMILIES:
        samples = {f"{family.shown}{end}" for end in SUFFIXES.get(family.kind, ("",))}
        if family.name not in NOT_SHOWN:
            assert samples & shown, f"no panel shows {family.shown}"


def test_rules_and_their_tests() -> None:
    assert "SUCCESS" in checked("promtool", "check", "rules", str(RULES))
    assert "SUCCESS" in checked(
        "promtool", "test", "rules", str(DEPLOY / "prometheus" / "headrace.tests.yml")
    )
    config = DEPLOY / "prometheus" / "prometheus.yml"
    assert "SUCCESS" in checked("promtool", "check", "config", str(config))


def test_each_alert_has_a_test_and_words_for_who_is_woken() -> None:
    tested = (DEPLOY / "prometheus" / "headrace.tests.yml").read_text()
    explained = (ROOT / "docs" / "operations.md").read_text()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        # The anchor of its heading.
        runbook = f"{{{{ $externalLabels.runbooks }}}}#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == runbook
        assert tested.count(f"alertname: {rule['alert']}\n") >= 1, rule["alert"]
        assert f"### {rule['alert']}\n" in explained, f"{rule['alert']} is not explained"
    told = re.findall(r"^### (Headrace\w+)$", explained, re.MULTILINE)
    assert sorted(told) == sorted(rule["alert"] for rule in ALERTS)


def test_the_routing() -> None:
    config = str(DEPLOY / "alertmanager" / "alertmanager.yml")
    assert "SUCCESS" in checked("amtool", "check-config", config)
    for severity in ("page", "ticket"):
        routed = checked(
            "amtool", "config", "routes", "test", f"--config.file={config}",
            f"severity={severity}", "alertname=HeadraceX", "model=m",
        )  # fmt: skip
        assert routed.split()[0] == severity


def test_what_grafana_is_given() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards/headrace.yml").read_text())[
        "providers"
    ]
    assert Path(provider["options"]["path"]).is_absolute()


def test_pods_of_torchserve_are_scaled_by_what_waits_and_runs(tmp_path: Path) -> None:
    """KEDA's queries, on two pods that show the same figures."""
    scaled = yaml.safe_load((DEPLOY / "torchserve/keda.yaml").read_text())
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    busy, oldest = [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]
    for metadata in (busy, oldest):
        assert float(metadata["threshold"]) > 0
        assert "://" in metadata["serverAddress"]
    figures = {torchserve.DEPTH: 30, torchserve.IN_FLIGHT: 4, torchserve.OLDEST: 12}
    labels = 'model_name="digits", model_version="default"'
    series = [
        {"series": f'{spec.name}{{instance="{pod}", {labels}}}', "values": f"{value}+0x4"}
        for spec, value in figures.items()
        for pod in ("a:8082", "b:8082")
    ]
    tests = [
        {"expr": metadata["query"], "eval_time": "1m",
         "exp_samples": [{"labels": "{}", "value": value}]}
        for metadata, value in ((busy, 34), (oldest, 12))
    ]  # fmt: skip
    path = tmp_path / "keda.tests.yml"
    content = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": tests}]}
    path.write_text(yaml.safe_dump(content))
    assert "SUCCESS" in checked("promtool", "test", "rules", str(path))
