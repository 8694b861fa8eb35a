"""What checkov finds in the objects of the chart is excused, with a reason, or mended."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path

import yaml

from tests.harness.deploy.helm import CHART, pods, rendered, require
from tests.unit.deploy.test_helm import MATRIX

EXCUSED = yaml.safe_load((CHART.parent / "policies.yaml").read_text())
#: The pods of a `helm test` end after a command, so they have no probes.
WITHOUT_TESTS = "--skip-tests"


def test_checkov_finds_only_what_is_excused(tmp_path: Path) -> None:
    for name, values in MATRIX.items():
        objects = rendered(values, WITHOUT_TESTS)
        for pod in pods(objects).values():
            # Those are the user's.
            pod["spec"].pop("initContainers", None)
        for one in objects:
            if one["kind"] == "ScaledJob":
                # Checkov does not know KEDA. What a ScaledJob starts is a Job.
                one |= {"apiVersion": "batch/v1", "kind": "Job"}
                one["spec"] = one["spec"]["jobTargetRef"]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
    done = subprocess.run(
        [require("checkov"), "--framework", "kubernetes", "--directory", str(tmp_path),
         "--output", "json", "--quiet", "--soft-fail", "--skip-download"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["resource_count"] > 100
    found = defaultdict(set)
    for one in report["results"]["failed_checks"]:
        component = one["resource"].rpartition(".headrace-")[2].partition("-")[0]
        found[one["check_id"]].add(component)
    assert found.keys() == EXCUSED.keys()
    for check, excuse in EXCUSED.items():
        assert excuse["reason"]
        if "of" in excuse:
            assert found[check] == set(excuse["of"]), check
