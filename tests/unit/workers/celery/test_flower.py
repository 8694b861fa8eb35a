"""What Flower gets from us, and that docs/flower.md says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.redis.keys import TASK_NAME
from headrace.server import components
from workers.background import app
from workers.celery import remote_control
from workers.celery.flower import route
from workers.celery.task_events import BURST_S

TEXT = (Path(__file__).parents[4] / "docs" / "flower.md").read_text("utf-8")
QUEUES = {"m": "headrace.m"}


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "queue"),
    [
        (TASK_NAME, (), {"model": "m", "input": 1}, "headrace.m"),
        (TASK_NAME, ["m", 1], {}, "headrace.m"),
        (TASK_NAME, None, {"model": "m"}, "headrace.m"),
        (TASK_NAME, (), {"model": "other"}, None),
        (TASK_NAME, (), {"model": ["m"]}, None),
        (TASK_NAME, (), None, None),
        (TASK_NAME, "m", None, None),
        ("another.task", (), {"model": "m"}, None),
    ],
)
def test_a_job_is_routed_by_its_model(
    name: str, args: object, kwargs: object, queue: str | None
) -> None:
    assert route(QUEUES, name, args, kwargs) == (queue and {"queue": queue})


def test_what_we_set_stands_in_the_document_and_yields_to_the_user() -> None:
    environ = {"HEADRACE_REDIS_URL": "", "FLOWER_MAX_TASKS": "7", "FLOWER_BASIC_AUTH": ""}
    given = components.flower_child(Settings(), environ).environment()
    assert given["FLOWER_MAX_TASKS"] == "7"
    assert "FLOWER_BASIC_AUTH" not in given
    for name, value in components.flower_child(Settings(), {}).environment().items():
        assert f"| `{name}` | {value} |" in TEXT or f"| `{name}` | `{value}` |" in TEXT


def test_every_button_that_is_refused_stands_in_the_document() -> None:
    buttons = {
        "pool_grow": "*Grow*", "pool_shrink": "*Shrink*", "autoscale": "*Autoscale*",
        "pool_restart": "*Restart Pool*", "rate_limit": "*Rate limit*",
        "time_limit": "*Soft*, *Hard*",
    }  # fmt: skip
    assert buttons.keys() == remote_control.REFUSED.keys() | app.REFUSED.keys()
    table = TEXT.partition("## Buttons")[2].partition("## Events")[0].splitlines()
    for button in buttons.values():
        (row,) = (line for line in table if button in line)
        assert row.split("|")[2].strip().startswith("error")


def test_the_rate_of_a_sample_is_the_documents() -> None:
    assert f"`events_per_s` ({Settings().events_per_s})" in TEXT
    assert BURST_S == 10
    assert "ten seconds' worth at once" in TEXT
