"""docs/kubernetes.md against the chart: each command would work on what Helm renders."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.routes.table import TABLE
from headrace.cli.main import every_command
from tests.harness.deploy.helm import CHART, MANIFESTS, helm, pods

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kubernetes.md"
LINES_MAX = 200
COMMANDS: Any = typer.main.get_command(every_command())
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Walkthrough:
    """The page's commands, one after the other.

    Attributes:
        images: what was built, and what was pushed.
        objects: what the last `helm install` or `helm upgrade` made.
        secrets: the keys of the Secrets that exist: made by a command, or by the chart's Job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: dict[str, set[str]] = {"build": set(), "push": set()}
        self.objects: list[dict[str, Any]] = []
        self.secrets: dict[str, set[str]] = {}
        self.calls = 0

    def run(self, line: str) -> None:
        for inner in re.findall(r"\$\((\w[^()]*)\)", line):
            self.run(inner)
        line = re.sub(r"\$\([^()]*\)", "inner", line)
        line = re.sub(r"^(export )?\w+=", "", line).removesuffix(" &")
        words = shlex.split(line.partition(" | ")[0])
        if words[0] in ("inner", "openssl"):
            return
        getattr(self, words[0])(words[1:])
        self.calls += 1

    def docker(self, words: list[str]) -> None:
        image = words[words.index("-t") + 1] if words[0] == "build" else words[1]
        self.images[words[0]].add(image)
        if words[0] == "build":
            text = (ROOT / words[words.index("-f") + 1]).read_text()
            for name, value in pairwise(words):
                if name == "--build-arg":
                    assert f"ARG {value.partition('=')[0]}" in text

    def helm(self, words: list[str]) -> None:
        assert words[1] == "headrace"
        assert words[words.index("--namespace") + 1] == "headrace"
        if words[0] == "test":
            assert any(one["kind"] == "Pod" for one in self.objects)
            return
        assert words[0] in ("install", "upgrade")
        assert ROOT / words[2] == CHART
        given = [str(CHART) if word == words[2] else word for word in words[1:]]
        rest = [word for word in given if word not in ("--wait", "--create-namespace")]
        rest = [self.path(word) for word in rest]
        status, text, errors = helm("template", *rest)
        assert status == 0, errors
        self.objects = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
        for one in self.objects:
            for rule in one.get("rules", []) if one["kind"] == "Role" else []:
                self.secrets |= {name: {"key"} for name in rule.get("resourceNames", [])}
        for text in re.findall(r"'image': '(registry[^']+)'", str(self.objects)):
            assert text in self.images["push"] & self.images["build"], text
        self.check_secrets()

    def path(self, word: str) -> str:
        """A file of the page, where it is here."""
        name, _, file = word.rpartition("=")
        here = self.folder / file
        return word if not here.is_file() else f"{name}={here}" if name else str(here)

    def check_secrets(self) -> None:
        """Each Secret that a pod needs exists, with the key that it reads."""
        for pod in pods(self.objects).values():
            for volume in pod["spec"]["volumes"]:
                sources = volume.get("projected", {}).get("sources", [volume])
                for one in (source["secret"] for source in sources if "secret" in source):
                    name = one.get("name") or one["secretName"]
                    assert {item["key"] for item in one["items"]} <= self.secrets[name], name

    def kubectl(self, words: list[str]) -> None:
        if words[0] == "apply":
            assert words[1] == "-k"
            assert ROOT / words[2] == MANIFESTS
            return
        assert words[words.index("--namespace") + 1] == "headrace"
        if words[:3] == ["create", "secret", "generic"]:
            literals = [word for word in words if word.startswith("--from-literal=")]
            self.secrets[words[3]] = {word.split("=")[1] for word in literals}
            return
        ends = next(n for n, word in enumerate(words) if word.startswith("--"))
        verb, *named = words[:ends]
        assert verb in ("delete", "get", "port-forward", "wait")
        if "/" in named[0]:
            kind, name = named[0].split("/")
            (port,) = self.spec(kind, name)["ports"]
            assert named[1].endswith(f":{port['port']}")
            return
        for name in named[1:]:
            if named[0] == "secret":
                (path,) = re.findall(r"\{\.data\.(\w+)\}", " ".join(words))
                assert path in self.secrets[name]
            else:
                self.spec(named[0], name)

    def spec(self, kind: str, name: str) -> Any:
        for one in self.objects:
            if (one["kind"].lower(), one["metadata"]["name"]) == (kind, name):
                return one["spec"]
        raise AssertionError(f"no {kind} {name}")

    def headrace(self, words: list[str]) -> None:
        command = COMMANDS
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command, words = command.commands[words[0]], words[1:]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, words

    def curl(self, words: list[str]) -> None:
        path = words[-1].removeprefix("http://127.0.0.1:8080").partition("?")[0]
        known = {one.path for one in TABLE}
        assert re.sub(r"/models/\w+/", "/models/{model}/", path) in known
        (data,) = [word for word in words if word.startswith("@")]
        assert (ROOT / data[1:]).is_file()


def test_every_command_works_with_the_chart(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    walk = Walkthrough(tmp_path)
    (tmp_path / "words.py").write_text("class Words:\n    pass\n")
    for kind, block in BLOCK.findall(text):
        if kind == "yaml":
            # Its first line names the file.
            (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
            continue
        for line in block.splitlines():
            walk.run(line)
    assert walk.calls > 20
    built, pushed = walk.images["build"], walk.images["push"]
    assert built == pushed


@pytest.mark.parametrize(
    "line",
    [
        "helm upgrade headrace deploy/helm/headrace --namespace headrace --set api.replica=3",
        "kubectl get deployment headrace-worker-large --namespace headrace",
        "kubectl get secret headrace-key-gone --namespace headrace -o jsonpath='{.data.key}'",
        "headrace submit digits --wait-for-it",
        "curl http://127.0.0.1:8080/api/v1/models/digits/job --data @README.md",
    ],
)
def test_a_command_that_would_not_work_is_found(line: str, tmp_path: Path) -> None:
    walk = Walkthrough(tmp_path)
    walk.run("helm install headrace deploy/helm/headrace --namespace headrace")
    with pytest.raises((AssertionError, KeyError)):
        walk.run(line)
