"""How many replicas a model with `max_replicas` has, by what it has to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config.model.catalog import ModelConfig
from tests.unit.workers.scheduling.test_staging import batch, job
from workers.lifecycle.autoscaler import RETRY_S, Autoscaler, Limits, Load, Scale, next_scale
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica

NOW = 1000.0
LIMITS = Limits(least=1, most=3, idle_s=60.0)
#: More jobs wait than the next batch takes, and the process is busy.
OVERLOADED = Load(waiting=9, takes=4, busy=True)
QUIET = Load(waiting=0, takes=4, busy=False)


def after(*loads: tuple[float, Load], start: Scale = Scale(1)) -> Scale:  # noqa: B008 - immutable
    """Return the scale after checks at these seconds."""
    for second, load in loads:
        start = next_scale(start, load, LIMITS, NOW + second)
    return start


def test_a_replica_is_added_when_jobs_have_waited_for_a_second() -> None:
    assert after((0, OVERLOADED), (0.9, OVERLOADED)).replicas == 1
    more = after((0, OVERLOADED), (0.5, OVERLOADED), (1, OVERLOADED))
    assert more.replicas == 2
    assert "9 jobs wait" in more.why


@pytest.mark.parametrize(
    "between",
    [
        QUIET,
        OVERLOADED._replace(waiting=4),
        OVERLOADED._replace(busy=False),
        OVERLOADED._replace(changing=True),
    ],
)
def test_the_second_begins_again_when_the_jobs_no_longer_wait(between: Load) -> None:
    assert after((0, OVERLOADED), (0.5, between), (1, OVERLOADED)).replicas == 1


def test_the_next_replica_is_added_after_another_second() -> None:
    checks = [(second / 2, OVERLOADED) for second in range(4)]
    assert after(*checks).replicas == 2
    assert after(*checks, (2, OVERLOADED), (3, OVERLOADED)).replicas == 3


def test_no_more_than_the_most_and_no_fewer_than_the_least() -> None:
    assert after((0, OVERLOADED), (1, OVERLOADED), start=Scale(3)).replicas == 3
    assert after((0, QUIET._replace(idle_s=61)), start=Scale(1)).replicas == 1


def test_one_idle_replica_after_the_other_is_removed() -> None:
    idle = QUIET._replace(idle_s=60)
    assert after((0, QUIET._replace(idle_s=59)), start=Scale(3)).replicas == 3
    less = after((0, idle), start=Scale(3))
    assert (less.replicas, less.why) == (2, "a process was idle for 60 s")
    # The next one waits until that one has ended.
    assert after((0, idle), (1, idle._replace(changing=True)), start=Scale(3)).replicas == 2
    assert after((0, idle), (1, idle), start=Scale(3)).replicas == 1


def test_a_replica_that_cannot_be_loaded_is_given_up_and_tried_again_later() -> None:
    failed = OVERLOADED._replace(failed=True, changing=True)
    less = after((0, failed), start=Scale(2))
    assert (less.replicas, less.why) == (1, "a process could not be loaded")
    checks = [(second, OVERLOADED) for second in (1, 2, 3, RETRY_S - 1)]
    assert after(*checks, start=less).replicas == 1
    assert after(*checks, (RETRY_S, OVERLOADED), start=less).replicas == 2
    # Those that it must have are tried again and again.
    assert after((0, failed)).replicas == 1


def config(**options: Any) -> ModelConfig:
    given = {"max_replicas": 3, "max_batch_size": 2, **options}
    return ModelConfig(name="m", handler="echo", **given)


def served(config: ModelConfig, *, busy: int, waiting: int = 0) -> ServedModel:
    """A model with loaded processes; `busy` of them run a batch, and the others have long ended."""
    replicas = [Replica({}, {}, state=Phase.READY) for _ in range(config.replicas)]
    for replica in replicas[:busy]:
        replica.batch = batch()
    made = ServedModel(config, 0, replicas, template=Replica({"device": "cpu"}, {}))
    made._backlog.raise_waiting([waiting, 0, 0, 0])
    return made


def number(scaler: Autoscaler, config: ModelConfig) -> int:
    return scaler.replicas[config.name, config.version]


def check(scaler: Autoscaler, model: ServedModel, *seconds: float) -> bool:
    """Whether any of the checks at these seconds has changed the number."""
    return sum(scaler.check([model], NOW + second) for second in seconds) > 0


def test_jobs_that_wait_here_and_in_redis_count() -> None:
    scaler, scaled = Autoscaler(), config()
    scaler.follow([scaled])
    model = served(scaled, busy=1, waiting=1)
    model._batcher.add(job())
    assert not check(scaler, model, 0, 1)
    assert number(scaler, scaled) == 1
    model._batcher.add(job())
    assert check(scaler, model, 2, 3)
    assert number(scaler, scaled) == 2


def test_a_model_that_has_not_got_its_number_yet_waits() -> None:
    scaler, scaled = Autoscaler(), config()
    scaler.follow([scaled])
    check(scaler, served(scaled, busy=1, waiting=99), 0, 1, 2, 3)
    assert number(scaler, scaled) == 2


def test_the_last_replica_decides_how_long_one_was_idle() -> None:
    scaler, scaled = Autoscaler(), config(replicas=2)
    scaler.follow([scaled])
    model = served(scaled, busy=1)
    first, last = model.replicas
    last.idle_since = NOW - 59
    check(scaler, model, 0)
    assert number(scaler, scaled) == 2
    check(scaler, model, 1)
    assert number(scaler, scaled) == 1
    # A process that is not loaded goes first, wherever it is.
    first.state = Phase.RESTARTING
    assert model.lasting == [last, first]


def test_replicas_is_where_it_starts_within_the_limits_and_0_stops_it() -> None:
    scaler, scaled = Autoscaler(), config(min_replicas=2)
    scaler.follow([scaled])
    assert number(scaler, scaled) == 2
    scaler.follow([msgspec.structs.replace(scaled, replicas=3)])
    assert number(scaler, scaled) == 3
    stopped = config(replicas=0)
    scaler.follow([stopped])
    check(scaler, served(stopped, busy=0, waiting=99), 0, 1, 2)
    assert number(scaler, scaled) == 0


def test_other_limits_keep_the_number_within_them() -> None:
    scaler, scaled = Autoscaler(), config()
    scaler.follow([scaled])
    check(scaler, served(scaled, busy=1, waiting=99), 0, 1)
    scaler.follow([config(max_replicas=9)])
    assert number(scaler, scaled) == 2
    scaler.follow([config(max_replicas=1)])
    assert number(scaler, scaled) == 1


def test_without_max_replicas_nothing_changes() -> None:
    scaler, fixed = Autoscaler(), config(max_replicas=None, replicas=4)
    scaler.follow([fixed])
    assert not check(scaler, served(fixed, busy=4, waiting=99), 0, 1)
    assert scaler.replicas == {}


def test_no_more_replicas_than_slots_unless_that_many_are_configured() -> None:
    scaler, scaled = Autoscaler(slots=1), config()
    scaler.follow([scaled])
    check(scaler, served(scaled, busy=1, waiting=99), 0, 1)
    assert number(scaler, scaled) == 1
    least = config(min_replicas=2)
    scaler.follow([least])
    assert number(scaler, least) == 2
