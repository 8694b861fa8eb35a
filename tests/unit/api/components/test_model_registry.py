"""How far the workers are with a change of a model."""

from __future__ import annotations

from api.components.model_registry import change_state, removal_state
from headrace.observability.worker_report import (
    Figures,
    ModelState,
    RegistryProgress,
    WorkerReport,
)


def report(*models: str, progress: RegistryProgress | None, version: str = "2.0") -> WorkerReport:
    states = {name: ModelState("ready", version=version) for name in models}
    return WorkerReport("cpu@test", 1, states, Figures(), registry=progress)


def state(*reports: WorkerReport) -> str:
    return change_state(reports, 7, "words", ["2.0"])[0]


DONE = report("words", progress=RegistryProgress(7))


def test_all_workers_that_follow_must_have_it() -> None:
    assert state(DONE) == "ready"
    assert state(DONE, report("words", progress=RegistryProgress(6))) == "pending"
    assert state(DONE, report("words", progress=RegistryProgress(8, ["words"]))) == "pending"
    assert state(DONE, report("words", progress=RegistryProgress(8, ["other"]))) == "ready"


def test_workers_that_do_not_follow_or_do_not_serve_it_do_not_count() -> None:
    other = report("other", progress=RegistryProgress(7))
    assert state(DONE, report("words", progress=None), other) == "ready"
    assert state(report("words", progress=None), other) == "pending"
    assert state(report("words@2.0", progress=RegistryProgress(7))) == "ready"
    assert state() == "pending"


def test_a_worker_that_serves_another_version_alone_does_not_count() -> None:
    assert state(report("words", progress=RegistryProgress(7), version="1.0")) == "pending"


def test_every_version_of_a_change_must_be_served() -> None:
    first = report("words", progress=RegistryProgress(7), version="1.0")
    both = ["1.0", "2.0"]
    assert change_state([DONE], 7, "words", both)[0] == "pending"
    assert change_state([DONE, first], 7, "words", both)[0] == "ready"


def test_a_version_is_removed_when_no_worker_that_follows_serves_or_ends_it() -> None:
    def removed(one: WorkerReport, version: str = "1.0") -> str:
        return removal_state([DONE, one], 7, "words", version)

    assert removal_state([], 7, "words", "") == "ready"
    assert removed(report("other", progress=RegistryProgress(7))) == "ready"
    assert removed(report("words", progress=None, version="1.0")) == "ready"
    assert removed(report("other", progress=RegistryProgress(6))) == "pending"
    assert removed(report("words@1.0", progress=RegistryProgress(7), version="1.0")) == "pending"
    assert removed(report("other", progress=RegistryProgress(7, ["words"]))) == "pending"
    assert removed(report("other", progress=RegistryProgress(7)), "") == "pending"


def test_the_first_failed_load_of_the_version_is_the_outcome() -> None:
    failed = {"words@2.0": "Traceback", "words@1.0": "another"}
    behind = report("words", progress=RegistryProgress(6, failed={"words@2.0": "of before"}))
    found = report("words", progress=RegistryProgress(7, ["words"], failed))

    assert change_state([behind, found], 7, "words", ["2.0"]) == ("failed", "Traceback")
    assert state(behind) == "pending"
    assert change_state([DONE, found], 7, "words", ["3.0"])[0] == "pending"
