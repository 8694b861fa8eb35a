"""What the API makes of the reports of the workers: versions, states, what a job waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from api.components import model_status
from api.components.model_status import ModelStatuses
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.observability.worker_report import Figures, ModelState, WorkerReport
from headrace.schema.serialization import Waiting

WORDS = ModelConfig(name="words", handler="echo", version="1.0")


def report(*versions: str) -> WorkerReport:
    # The default version has the name of the model alone.
    names = ["words", *(f"words@{version}" for version in versions[1:])]
    states = {
        name: ModelState("ready", version=version)
        for name, version in zip(names, versions, strict=True)
    }
    return WorkerReport("cpu@test", 1, states, Figures())


def after(*reports: dict[str, WorkerReport]) -> list[str]:
    """Return the versions after these reports of all workers, one set after the other."""

    async def learn() -> list[str]:
        statuses = ModelStatuses(cast(Any, None), Catalog(Path("models.yaml"), {"words": WORDS}))
        for one in reports:
            statuses.learn(one)
        return statuses.versions(WORDS)

    return asyncio.run(learn())


def test_a_version_that_its_worker_has_ended_is_one_no_more() -> None:
    both = {"one": report("1.0", "2.0")}
    assert after(both) == ["1.0", "2.0"]
    assert after(both, {"one": report("1.0")}) == ["1.0"]
    assert after(both, {"one": report("1.0"), "two": report("1.0", "2.0")}) == ["1.0", "2.0"]


def test_a_version_of_a_worker_that_is_gone_is_one_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = {"one": report("1.0", "2.0")}, dict[str, WorkerReport]()
    assert after(*reports) == ["1.0", "2.0"]
    monkeypatch.setattr(model_status, "VERSION_KEPT_S", -1.0)
    assert after(*reports) == ["1.0"]


def on_demand(*workers: dict[str, str], serving: str = "") -> tuple[str, str, Waiting | None]:
    """Return the state of a model that loads on demand, its error, and what a job waits for.

    Args:
        workers: what each reports as unloaded.
        serving: the state of the model in one more worker; "" for none.
    """
    reports = {
        f"w{n}": WorkerReport(f"w{n}", n, {}, Figures(), unloaded=unloaded)
        for n, unloaded in enumerate(workers)
    }
    if serving:
        state = ModelState(serving, ready=int(serving == "ready"), version="1.0")
        reports["serving"] = WorkerReport("serving", 1, {"words": state}, Figures())
    model = ModelConfig(name="words", handler="echo", load="on_demand")

    async def learn() -> tuple[str, str, Waiting | None]:
        statuses = ModelStatuses(cast(Any, None), Catalog(Path("models.yaml"), {"words": model}))
        found = statuses.learn(reports)["words"]
        return found.state, found.error, await statuses.waiting_for("words")

    return asyncio.run(learn())


def test_a_model_that_a_worker_loads_on_demand_is_unloaded() -> None:
    assert on_demand() == ("no-worker", "", Waiting("replica", "no worker runs"))
    assert on_demand({"words@1.0": ""}) == ("unloaded", "", Waiting("load"))
    assert on_demand({"words@1.0": ""}, serving="ready") == ("ready", "", None)
    assert on_demand({"words@1.0": ""}, serving="loading") == ("loading", "", Waiting("load"))


def test_it_has_failed_if_no_worker_can_load_it() -> None:
    broken = {"words@1.0": "it needs 900 MiB"}
    assert on_demand(broken) == (
        "failed",
        "it needs 900 MiB",
        Waiting("load", "it cannot be loaded: it needs 900 MiB"),
    )
    assert on_demand(broken, {"words@1.0": ""})[:2] == ("unloaded", "")
    assert on_demand({"words@1.0": ""}, broken)[:2] == ("unloaded", "")
    assert on_demand(broken, serving="ready")[0] == "ready"
