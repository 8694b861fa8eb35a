"""What a worker should serve, and which actions lead there; no process is started."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from workers.lifecycle.reconciler import (
    Discard,
    HandOver,
    Load,
    Retire,
    Scale,
    Serve,
    Target,
    Version,
    Wanted,
    desired,
    reconcile,
    unfinished,
    version_of,
)
from workers.models.served_model import Life, ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica


def wanted(
    version: str = "1", *, loads: int = 0, default: bool = True, **options: Any
) -> dict[Version, Wanted]:
    config = ModelConfig(name="m", handler="echo", version=version, **options)
    return {("m", version): Wanted(config, loads, default)}


class Worker:
    """The served models of one name, on which the actions are done as `ModelUpdates` does them."""

    def __init__(self) -> None:
        self.models: list[ServedModel] = []
        self.failed: set[Version] = set()
        self.awaited: set[Version] = set()
        self.dropped: set[Version] = set()

    def target(self, registered: dict[Version, Wanted]) -> Target:
        return Target(registered, self.failed, self.awaited, self.dropped)

    def step(self, registered: dict[Version, Wanted]) -> str:
        """Do all actions; their names."""
        names = []
        while (action := reconcile(self.models, self.target(registered))) is not None:
            names.append(type(action).__name__)
            assert len(names) < 20
            self._do(action)
        return " ".join(names)

    def _do(self, action: Any) -> None:
        match action:
            case Load():
                self._load(action)
            case Serve(model, predecessor):
                model.life = Life.SERVING
                if predecessor is not None:
                    if not predecessor.own_closed:
                        model.open_queue()
                    predecessor.life = Life.RETIRING
            case HandOver(model, owners):
                for owner in owners:
                    owner.close_queue()
                model.open_queue()
            case Scale(model, config):
                model.config = config
            case Retire(model):
                model.life = Life.RETIRING
            case Discard(model, error):
                model.life = Life.RETIRING
                self.failed |= {version_of(model)} if error else set()

    def _load(self, action: Load) -> None:
        config = action.wanted.config
        template = Replica({"device": "cpu"}, {})
        replicas = [template.another() for _ in range(config.replicas)]
        model = ServedModel(config, 0, replicas, template=template)
        model.loads, model.life = action.wanted.loads, Life.LOADING
        model.close_queue()
        self.models.append(model)
        if action.serves:
            self._do(Serve(model, action.predecessor))

    def ready(self, version: str) -> None:
        """Let the processes of a version that are not loaded be ready."""
        for model in self.models:
            if model.config.version == version and model.life is not Life.RETIRING:
                for replica in model.replicas:
                    replica.state = Phase.READY

    def fail(self) -> None:
        """Let the processes of the models that load fail."""
        for model in self.models:
            if model.life is Life.LOADING:
                for replica in model.replicas:
                    replica.state, replica.error = Phase.FAILED, "Traceback: broken"

    def end(self) -> None:
        """Let the models that retire end."""
        self.models = [model for model in self.models if model.life is not Life.RETIRING]

    def serving(self) -> dict[str, bool]:
        """The versions that serve, and whether each claims from the model's own queue."""
        serving = [model for model in self.models if model.life is Life.SERVING]
        return {model.config.version: not model.own_closed for model in serving}


def serving(version: str = "1", **options: Any) -> Worker:
    """A worker that serves one version."""
    worker = Worker()
    worker.step(wanted(version, **options))
    worker.ready(version)
    assert worker.step(wanted(version, **options)) == ""
    assert worker.serving() == {version: True}
    return worker


def test_what_is_unloaded_is_not_desired_and_the_replicas_are_those_of_now() -> None:
    registered = {
        **wanted("fixed", replicas=4), **wanted("idle"),
        **wanted("leased", total_replicas=5), **wanted("new", total_replicas=5),
        **wanted("scaled", max_replicas=3),
    }  # fmt: skip
    now = desired(registered, {("m", "idle")}, {("m", "leased"): 2}, {("m", "scaled"): 3})
    replicas = {version: entry.config.replicas for (_, version), entry in now.items()}
    assert replicas == {"fixed": 4, "leased": 2, "new": 0, "scaled": 3}
    assert all(entry.loads == 0 and entry.is_default for entry in now.values())


def test_a_new_model_serves_at_once_and_is_tried_again_if_it_cannot_be_loaded() -> None:
    worker = Worker()
    assert worker.step(wanted()) == "Load HandOver"
    worker.models[0].replicas[0].error = "Traceback: broken"
    assert worker.step(wanted()) == ""
    assert not unfinished(worker.models, worker.target(wanted()))


@pytest.mark.parametrize("change", [{"max_jobs": 7}, {"loads": 1}])
def test_a_successor_loads_before_its_predecessor_retires(change: dict[str, Any]) -> None:
    worker = serving()
    after = wanted(**change)
    assert worker.step(after) == "Load"
    assert [model.life for model in worker.models] == [Life.SERVING, Life.LOADING]
    assert worker.step(after) == ""
    assert unfinished(worker.models, worker.target(after))
    worker.ready("1")
    assert worker.step(after) == "Serve"
    worker.end()
    assert worker.serving() == {"1": True}
    assert not unfinished(worker.models, worker.target(after))


def test_without_room_for_both_the_predecessor_retires_first() -> None:
    worker = serving(recycle_overlap=False)
    after = wanted(recycle_overlap=False, loads=1)
    action = reconcile(worker.models, worker.target(after))
    assert action == Load(after["m", "1"], True, worker.models[0])
    assert worker.step(after) == "Load"
    assert [model.life for model in worker.models] == [Life.RETIRING, Life.SERVING]


def test_numbers_and_limits_need_no_new_process() -> None:
    worker = serving()
    for options in ({"replicas": 2}, {"memory_mb": 9}, {"idle_unload_s": 7.0}, {"max_replicas": 3}):
        assert worker.step(wanted(**options)) == "Scale"
        assert worker.step(wanted(**options)) == ""
    assert len(worker.models) == 1


def test_what_cannot_be_loaded_is_discarded_and_the_others_serve_on() -> None:
    worker = serving()
    after = wanted("2")
    assert worker.step(after) == "Load"
    worker.fail()
    action = reconcile(worker.models, worker.target(after))
    assert action == Discard(worker.models[1], "Traceback: broken")
    assert worker.step(after) == "Discard"
    worker.end()
    assert worker.serving() == {"1": True}
    assert not unfinished(worker.models, worker.target(after)), "until it changes"


def test_what_cannot_be_loaded_serves_if_the_others_were_unloaded() -> None:
    worker = serving()
    assert worker.step(wanted(loads=1)) == "Load"
    worker.models[0].life = Life.RETIRING
    worker.fail()
    assert worker.step(wanted(loads=1)) == "Serve HandOver"


def test_a_version_that_loads_is_discarded_when_it_changes_again_or_is_gone() -> None:
    worker = serving()
    worker.step(wanted(loads=1))
    assert worker.step(wanted(loads=2)) == "Discard Load"
    assert worker.step(wanted()) == "Discard"
    worker.end()
    both = wanted(default=True) | wanted("2", default=False)
    assert worker.step(both) == "Load"
    assert worker.step(wanted()) == "Discard"


def test_a_version_that_comes_back_while_it_retires_is_loaded_again() -> None:
    worker = serving()
    assert worker.step({}) == "Retire"
    assert worker.step(wanted()) == "Load HandOver"


def test_the_default_version_gets_the_queue_once_it_is_loaded() -> None:
    worker = serving()
    both = wanted(default=False) | wanted("2", default=True)
    assert worker.step(both) == "Load"
    worker.ready("2")
    assert worker.step(both) == "Serve HandOver"
    assert worker.serving() == {"1": False, "2": True}
    assert worker.step(wanted("2")) == "Retire"


def test_a_version_that_is_gone_serves_until_the_queue_has_another_owner() -> None:
    worker = serving()
    assert worker.step(wanted("2")) == "Load"
    assert worker.serving() == {"1": True}
    worker.ready("2")
    assert worker.step(wanted("2")) == "Serve HandOver Retire"


def test_a_version_that_is_left_out_or_unloaded_retires_at_once() -> None:
    worker = serving()
    worker.dropped = {("m", "1")}
    assert worker.step(wanted("2")) == "Load Retire"


@pytest.mark.parametrize(("awaited", "names"), [(True, "Serve"), (False, "Serve HandOver")])
def test_without_replicas_here_the_queue_waits_for_the_load_elsewhere(
    awaited: bool, names: str
) -> None:
    worker = serving()
    both = wanted(default=False) | wanted("2", replicas=0, total_replicas=1)
    worker.awaited = {("m", "2")} if awaited else set()
    assert worker.step(both) == f"Load {names}"
    assert unfinished(worker.models, worker.target(both)) is awaited


def test_of_two_default_versions_the_first_has_the_queue() -> None:
    """One of them has wrong options now, so that it is as it was."""
    worker = serving()
    both = wanted() | wanted("2")
    assert worker.step(both) == "Load"
    worker.ready("2")
    assert worker.step(both) == "Serve"
    assert worker.serving() == {"1": True, "2": False}
