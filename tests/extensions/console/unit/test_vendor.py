"""What the console has of others is what npm has, with its licence beside it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from extensions.console.api_part import STATIC
from tests.harness.servers.up import ROOT

VENDOR = STATIC / "vendor"
PACKAGES = ROOT / ".venv-console" / "node_modules"
LOCK = Path(__file__).parents[1] / "npm" / "package-lock.json"
#: Where each file is in its package.
SOURCES = {
    "htm-preact.js": "htm/preact/standalone.module.js",
    "uplot.js": "uplot/dist/uPlot.esm.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
}


def test_each_file_has_the_checksum_that_is_written_and_a_licence() -> None:
    written = re.findall(
        r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.MULTILINE
    )
    held = {path.name: path for kind in ("*.js", "*.css") for path in VENDOR.glob(kind)}
    assert {name: digest for digest, name in written} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in held.items()
    }
    assert held.keys() == SOURCES.keys()
    for licence in ("htm", "preact", "uplot"):
        assert "Permission" in (VENDOR / f"LICENSE.{licence}").read_text().replace(
            "Grant of", "Permission"
        )


@pytest.mark.skipif(not PACKAGES.exists(), reason="npm has installed nothing: make lint")
@pytest.mark.parametrize("name", SOURCES)
def test_each_file_is_that_of_its_package_in_the_version_that_is_written(name: str) -> None:
    source = PACKAGES / SOURCES[name]
    assert (VENDOR / name).read_bytes() == source.read_bytes()
    package = SOURCES[name].partition("/")[0]
    version = json.loads(LOCK.read_text())["packages"][f"node_modules/{package}"]["version"]
    assert f"{package} {version}" in (VENDOR / "README.md").read_text()
