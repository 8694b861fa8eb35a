"""The Celery app of a deployment, before any worker runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.control import Panel

from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from tests.harness.servers.up import clean_environment
from tests.harness.workers.worker import write_models
from workers.celery.app import CONTROL_QUEUE, create_app

SECRET = "correct-horse"


@contextmanager
def deployed(folder: Path, url: str | None) -> Iterator[Celery]:
    catalog = load_catalog(write_models(folder, echo={"handler": "echo"}))
    app = create_app(Settings(redis_url=url), catalog)
    try:
        yield app
    finally:
        app.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    with deployed(tmp_path, "redis://127.0.0.1:1/0") as app:
        yield app


def step(app: Celery) -> Any:
    (cls,) = app.steps["worker"]
    return cls(SimpleNamespace(app=app))


def test_it_wants_a_redis(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="a worker needs HEADRACE_REDIS_URL"),
        deployed(tmp_path, None),
    ):
        pass


def test_no_model_can_have_the_control_queue(tmp_path: Path) -> None:
    name = CONTROL_QUEUE.removeprefix("headrace")
    with pytest.raises(ConfigError):
        load_catalog(write_models(tmp_path, **{name: {"handler": "echo"}}))


def test_celerys_consumer_takes_the_control_queue_alone(app: Celery) -> None:
    assert set(app.amqp.queues.consume_from) == {CONTROL_QUEUE}
    step(app)


@pytest.mark.parametrize("queues", ["headrace.echo", f"{CONTROL_QUEUE},celery"])
def test_other_queues_are_refused_in_one_line(app: Celery, queues: str) -> None:
    app.amqp.queues.select(queues.split(","))
    with pytest.raises(SystemExit, match=r"^headrace: -Q [\w.]+: a Headrace worker takes no"):
        step(app)


def test_task_events_are_off_unless_asked_for(app: Celery) -> None:
    assert app.conf.worker_send_task_events is False


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:{SECRET}@h:1/0",
        f"rediss://:{SECRET}@h:1/0",
        f"unix://:{SECRET}@/run/r.sock",
        f"sentinel://:{SECRET}@a,b/0?master=m&sentinel_password={SECRET}",
    ],
    ids=["redis", "rediss", "unix", "sentinel"],
)
def test_neither_conf_nor_stats_hold_a_password(tmp_path: Path, url: str) -> None:
    with deployed(tmp_path, url) as app, app.connection() as connection:
        assert SECRET not in json.dumps(app.conf.table(with_defaults=True), default=str)
        # What Celery's worker adds to its stats of its connection.
        info = connection.info()
        info.pop("password")
        info["alternates"] = []
        controller = SimpleNamespace(stats=lambda: {"broker": info})
        state = SimpleNamespace(consumer=SimpleNamespace(controller=controller))
        assert SECRET not in json.dumps(Panel.data["stats"](state), default=str)


@pytest.mark.parametrize(
    ("app", "variables", "message"),
    [
        (
            "workers.background.app",
            {},
            "headrace: a background worker needs HEADRACE_REDIS_URL, which is not set; set",
        ),
        (
            "workers.celery_app",
            {"HEADRACE_REDIS_URL": "redis://127.0.0.1:1/0", "CELERY_WORKER_POOL": "none such"},
            "Invalid value for '-P' / '--pool': 'none such' is not one of",
        ),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    app: str, variables: dict[str, str], message: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "workers", app], env=clean_environment(**variables),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_worker_without_an_app_says_how_it_is_called() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "workers"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "usage: python -m workers APP [OPTIONS]\n"
