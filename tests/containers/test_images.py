"""The images: what is in them, what is not, and how large they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.deploy import engine
from tests.harness.deploy.engine import docker
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until

#: What each image must not have, as its part needs none of it.
ABSENT = {
    "api": ("torch", "celery", "numpy", "pip", "setuptools", "build", "pytest"),
    "background": ("torch", "fastapi", "build", "pytest"),
    "flower": ("torch", "fastapi", "build", "pytest"),
    "worker": ("fastapi", "build", "pytest"),
}
PARTS = tuple(ABSENT)
#: With the CPU build of torch.
WORKER_BYTES_MAX = 1_500_000_000
CONSTRAINTS = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line[1:]
)


def python(image: str, program: str) -> str:
    return docker("run", "--rm", image, "python", "-c", program)


def inspected(image: str) -> dict[str, Any]:
    (found,) = json.loads(docker("image", "inspect", image))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_it_holds_what_its_part_needs_in_the_versions_that_are_tested(
    images: str, part: str
) -> None:
    image = f"headrace-{part}:{images}"
    assert inspected(image)["Config"]["User"] == "10001:10001"
    found = python(image, f"""
import importlib.metadata as m, importlib.util as u, json, os, headrace
names = {ABSENT[part]!r}
print(json.dumps([[n for n in names if u.find_spec(n)], os.getuid(),
                  [(d.name.lower(), d.version) for d in m.distributions()]]))
""")  # fmt: skip
    present, user, installed = json.loads(found)
    assert present == []
    assert user == 10001
    versions = {name.replace("_", "-"): version.partition("+")[0] for name, version in installed}
    # Python before 3.11.3 needs async-timeout.
    bundled = {"headrace", "pip", "setuptools", "async-timeout"}
    assert {n: v for n, v in versions.items() if CONSTRAINTS.get(n, v) != v} == {}
    assert set(versions) - set(CONSTRAINTS) <= bundled
    assert "headrace" in versions


def test_the_worker_on_the_cpu_is_small(images: str) -> None:
    image = f"headrace-worker:{images}"
    if "cuda" in python(image, "import torch; print('cuda' if torch.version.cuda else '')"):
        pytest.skip("no index here has torch's build for the CPU")
    assert inspected(image)["Size"] <= WORKER_BYTES_MAX


def test_a_change_of_our_code_leaves_the_packages_as_they_are(images: str, tmp_path: Path) -> None:
    engine.copy_tree(tmp_path)
    with (tmp_path / "headrace/text.py").open("a") as file:
        file.write("# A change.\n")
    changed = f"{images}-changed"
    engine.build(tmp_path, changed)
    try:
        for part in PARTS:
            one, other = (
                inspected(f"headrace-{part}:{tag}")["RootFS"]["Layers"] for tag in (images, changed)
            )
            assert one[:-2] == other[:-2], part
            assert one != other, part
    finally:
        engine.remove(changed)


def test_packages_can_be_added_to_the_workers_image(images: str) -> None:
    """The Dockerfile of docs/compose.md."""
    text = (ROOT / "docs/compose.md").read_text()
    (shown,) = re.findall(r"^```dockerfile\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "FROM headrace-worker:local" in shown
    with engine.torch_index():
        tag = f"headrace-worker:{images}-more"
        docker("build", "-t", tag, "-", given=shown.replace(":local", f":{images}"))
    try:
        program = "import soundfile, importlib.metadata as m; print(m.version('numpy'))"
        assert python(tag, program) == CONSTRAINTS["numpy"]
    finally:
        docker("image", "rm", "--force", tag)


def test_the_image_in_place_of_torchserve_answers(images: str, tmp_path: Path) -> None:
    """Without torch, which its own models need and its API does not."""
    server, tag = f"headrace-server:{images}", f"headrace-torchserve:{images}"
    builds = {
        "server": (server, "deploy/Dockerfile.worker", {"EXTRAS": "server"}),
        "torchserve": (tag, "deploy/torchserve/Dockerfile", {"BASE_IMAGE": server}),
    }
    # As `docker build`, which keeps no layers where the client lacks a part.
    for name, (image, file, arguments) in builds.items():
        build = {"context": str(ROOT), "dockerfile": file, "args": arguments}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"services": {name: {"image": image, "build": build}}}))
        engine.run("docker", "compose", "--file", str(path), "build")
    container = docker("run", "--detach", tag)
    try:
        program = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{}').read())"
        for asked, answer in (("8080/ping", "Healthy"), ("8081/models", "models")):
            command = ("exec", container, "python", "-c", program.format(asked))
            wait_until(
                partial(contains, command, answer), f"{asked} answers {answer}",
                engine.HEALTHY_TIMEOUT_S, engine.POLL_S,
            )  # fmt: skip
        docker("stop", "--time", "60", container)
        (found,) = json.loads(docker("inspect", container))
        assert found["State"]["ExitCode"] != engine.KILLED
    finally:
        docker("rm", "--force", "--volumes", container)


def contains(command: Sequence[str], answer: str) -> bool:
    return answer in docker(*command, check=False)
