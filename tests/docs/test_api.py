"""docs/api.md against the code: nothing that a client can meet is left out, nothing is made up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.app import create_app
from api.components.model_status import NO_WORKER
from api.http.problems import PROBLEMS
from api.openapi import components
from headrace.config.settings import Settings
from headrace.jobs.job import State
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.observability.worker_report import BEST_FIRST
from tests.harness.servers.api_server import catalog

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")


def section(title: str) -> str:
    found = re.search(rf"^##+ {title}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/api.md has no section {title}"
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_route_is_documented() -> None:
    app = create_app(Settings(redis_url="redis://127.0.0.1:1/0"), catalog(echo={}))
    described = {
        (method.upper(), path)
        for path, operations in app.describe(with_models=False)["paths"].items()
        for method in operations
        if method != "parameters"
    }
    documented = {
        (method, cells[0].split("`")[-2])
        for cells in rows(TEXT.partition("## Submit")[0])
        for method in re.findall(r"`([A-Z]+)`", cells[0])
    }
    assert documented == described


def test_every_problem_is_documented_with_cause_and_remedy() -> None:
    documented = {}
    for kind, status, cause, remedy in rows(section("Problems")):
        assert cause
        assert remedy
        documented[kind.strip("`")] = int(status)
    assert documented == {f"/problems/{code}": cls.status for code, cls in PROBLEMS.items()}


def test_every_option_is_documented() -> None:
    documented = [cells[0].strip("`") for cells in rows(section("Options"))]
    assert documented == list(JobOptions.__struct_fields__)
    assert rows(section("Options"))[0][2] == str(DEFAULT_OPTIONS.priority)


def test_every_field_of_the_job_object_is_documented() -> None:
    text = section("The job object").partition("`GET")[0]
    documented = [name for cells in rows(text) for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(documented) == sorted(components()["JobObject"]["properties"])


@pytest.mark.parametrize(
    "word", sorted({*(state.status for state in State), *BEST_FIRST, NO_WORKER})
)
def test_every_state_is_documented(word: str) -> None:
    assert f"`{word}`" in TEXT
