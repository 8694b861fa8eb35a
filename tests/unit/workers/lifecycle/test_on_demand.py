"""Which models with `load: on_demand` are loaded, by what is known of them; times are arguments."""

from __future__ import annotations

import os
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import Settings
from headrace.redis import keys
from workers.lifecycle.on_demand import FOUND_S, RETRY_MIN_S, OnDemandModels
from workers.lifecycle.reconciler import Wanted
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica

TURN_S = 10.0


class Process:
    """In place of a model process: this one, with its memory."""

    pid = os.getpid()


class Site:
    """A worker with on-demand models `a`, `b` and `c`, whose processes do as the test orders."""

    def __init__(self, **settings: Any) -> None:
        self.models: list[ServedModel] = []
        made = Settings(redis_url="redis://nowhere", load_turn_s=TURN_S, **settings)
        self.on_demand = OnDemandModels(self.models, made)
        self.with_work: set[str] = set()
        self.changes: list[bool] = []
        self.now = 1000.0

    def want(self, *names: str, needed: str = "", **options: Any) -> None:
        entries = {}
        for name in names:
            config = ModelConfig(name=name, handler="echo", load="on_demand", **options)
            entries[name, "1.0"] = Wanted(config, 0, is_default=True)
        self.on_demand.follow(entries, [(name, "1.0") for name in needed])

    def look(self, after_s: float = 1.0) -> set[str]:
        """One look; the names of the models that should be loaded then."""
        self.now += after_s
        looked = self.on_demand.look(self.now, {})
        queues = " ".join(self.on_demand.queue_groups()).split()
        waiting = [queue for queue in queues if queue in self.with_work]
        self.changes.append(self.on_demand.work_waits(waiting, self.now) or looked)
        return {name for name, _ in self.on_demand.versions - self.on_demand.idle}

    def find(self, name: str) -> None:
        self.with_work.add(keys.queue_name(name))

    def load(self, name: str, *, jobs: int = 0, ran: int = 1, device: str = "cpu") -> ServedModel:
        """Let a model be ready, with jobs that wait."""
        self.with_work.discard(keys.queue_name(name))
        replica = Replica({"device": device}, {})
        replica.state, replica.jobs = Phase.READY, ran
        config = ModelConfig(name=name, handler="echo", load="on_demand")
        model = ServedModel(config, 0, [replica])
        model._backlog.queues[0].waiting[0] = jobs
        self.models.append(model)
        return model

    def end(self, name: str) -> None:
        self.models[:] = [model for model in self.models if model.config.name != name]


def test_what_has_no_work_is_not_loaded_and_what_has_is() -> None:
    site = Site()
    site.want("a", "b")
    assert site.look() == set()
    site.find("a")
    assert site.look() == {"a"}
    assert site.changes == [False, True]
    site.load("a")
    site.look()
    assert site.changes == [False, True, False]
    assert keys.queue_name("a") not in site.on_demand.queue_groups()[0].split()
    assert site.on_demand.unloaded() == {"b@1.0": ""}


def test_an_idle_one_is_unloaded_after_its_time_and_one_with_jobs_is_not() -> None:
    site = Site()
    site.want("a", "b", idle_unload_s=30.0)
    site.find("a")
    site.find("b")
    site.look()
    site.load("a")
    site.load("b", jobs=1)
    assert site.look() == {"a", "b"}
    assert site.look(29.0) == {"a", "b"}
    assert site.look(2.0) == {"b"}


def test_without_a_time_an_idle_one_stays() -> None:
    site = Site()
    site.want("a", idle_unload_s=0.0)
    site.find("a")
    site.look()
    site.load("a")
    assert site.look(1e6) == {"a"}
    assert site.look(1e6) == {"a"}


def test_the_least_recently_used_idle_one_makes_room() -> None:
    site = Site(max_loaded_models=2)
    site.want("a", "b", "c")
    for name in "ab":
        site.find(name)
        site.look()
        site.load(name)
        site.look()
    site.models[0].replicas[0].jobs += 1  # `a` has run a job since
    site.look()
    site.find("c")
    assert site.look() == {"a"}, "b ends first"
    assert site.look() == {"a"}
    site.end("b")
    assert site.look() == {"a", "c"}


def test_busy_ones_take_turns_and_the_first_that_waits_is_not_passed_over() -> None:
    site = Site(max_loaded_models=1)
    site.want("a", "b", "c")
    site.find("a")
    site.look()
    site.load("a", jobs=5)
    assert site.look() == {"a"}
    site.find("b")
    assert site.look() == {"a"}
    site.find("c")
    assert site.look(TURN_S - 2) == {"a"}
    assert site.look(1.0) == set(), "it has had its turn"
    site.end("a")
    site.find("a")
    assert site.look() == {"b"}


def test_one_that_has_run_nothing_keeps_its_room() -> None:
    site = Site(max_loaded_models=1)
    site.want("a", "b")
    site.find("a")
    site.look()
    model = site.load("a", jobs=5, ran=0)
    site.look()
    site.find("b")
    assert site.look(10 * TURN_S) == {"a"}
    model.replicas[0].jobs = 1
    assert site.look() == {"a"}
    assert site.look(TURN_S - 1) == {"a"}, "its turn has begun with its first batch"
    assert site.look(1) == set()


def test_work_that_is_found_no_more_is_forgotten() -> None:
    site = Site(max_loaded_models=1)
    site.want("a", "b")
    site.find("a")
    site.look()
    site.load("a", jobs=1)
    site.find("b")
    site.look()
    site.with_work.clear()
    assert site.look(FOUND_S + 1) == {"a"}
    site.end("a")
    site.want("b")
    assert site.look() == set()


def test_a_load_that_fails_is_tried_again_with_growing_waits_and_not_in_a_loop() -> None:
    site = Site()
    site.want("a")
    site.find("a")
    gaps = []
    for _ in range(4):
        began = site.now
        while "a" not in site.look(0.25):
            assert site.now < began + 100
        gaps.append(site.now - began)
        site.on_demand.look(site.now, {("a", "1.0"): "Traceback: broken"})
        assert site.on_demand.errors() == {"a@1.0": "Traceback: broken"}
    assert gaps[1:] == sorted(gaps[1:])
    assert gaps[1] >= RETRY_MIN_S
    assert gaps[3] >= 4 * RETRY_MIN_S
    site.want("a", max_retries=1)
    assert site.on_demand.errors() == {}, "other options may mend it"
    assert site.look() == {"a"}


def test_one_that_needs_more_than_the_limit_is_not_loaded_and_holds_up_no_other() -> None:
    site = Site(loaded_memory_mb=100)
    site.want("a", "b")
    entries = dict(site.on_demand._entries)
    large = ModelConfig(name="a", handler="echo", load="on_demand", memory_mb=101)
    site.on_demand.follow({**entries, ("a", "1.0"): Wanted(large, 0, is_default=True)}, [])
    site.find("a")
    site.find("b")
    assert site.look() == {"b"}
    assert "needs 101 MiB" in site.on_demand.errors()["a@1.0"]
    assert "needs 101 MiB" in site.on_demand.unloaded()["a@1.0"]


@pytest.mark.parametrize(("device", "left"), [("cpu", {"b"}), ("cuda:0", {"a", "b"})])
def test_a_model_without_memory_has_an_idle_one_of_its_device_unloaded(
    device: str, left: set[str]
) -> None:
    site = Site()
    site.want("a", "b")
    for name in "ab":
        site.find(name)
    site.look()
    site.load("a", device=device)
    lacking = site.load("b", jobs=1)
    site.look()
    lacking.lacks_memory = True
    assert site.look() == left
    assert not lacking.lacks_memory


def test_what_is_needed_is_loaded_at_once() -> None:
    site = Site()
    site.want("a", "b", needed="b")
    assert site.look() == {"b"}


def test_one_whose_lost_process_starts_again_keeps_its_room() -> None:
    site = Site(max_loaded_models=1)
    site.want("a", "b", idle_unload_s=0.5)
    site.find("a")
    site.look()
    model = site.load("a", jobs=5)
    site.look()
    site.find("b")
    model.replicas[0].state = Phase.RESTARTING
    assert site.look() == {"a"}
    model.replicas[0].state = Phase.FAILED
    model.replicas[0].error = "Traceback: broken"
    assert site.look() == set(), "but not if it cannot be loaded"


def test_one_that_is_too_large_and_idle_is_unloaded_once() -> None:
    """It is measured in the first look after its load, when it may have been idle for long."""
    site = Site(loaded_memory_mb=1)
    site.want("a", idle_unload_s=0.5)
    site.find("a")
    site.look()
    model = site.load("a", ran=0)
    model.replicas[0].process = Process()  # type: ignore[assignment]
    assert site.look() == set()
    assert "raise loaded_memory_mb" in site.on_demand.errors()["a@1.0"]


def test_one_whose_options_change_is_measured_again() -> None:
    site = Site(loaded_memory_mb=100_000)
    site.want("a")
    site.find("a")
    site.look()
    model = site.load("a", jobs=1)
    model.replicas[0].process = Process()  # type: ignore[assignment]
    site.look()
    version = ("a", "1.0")
    assert site.on_demand._memory_mib(version) > 0
    site.want("a", idle_unload_s=7.0)
    site.look()
    assert site.on_demand._memory_mib(version) > 0
