"""A stock Celery worker on a queue of its own, and signatures of its tasks and of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from headrace.redis.keys import TASK_NAME, queue_name
from tests.harness.processes.children import end_child
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT

STOCK_QUEUE = "stock"


@contextmanager
def stock_worker(url: str, folder: Path, app: Celery) -> Iterator[None]:
    """A running `celery worker -Q stock` with the tasks of `tests.harness.workers.stock_tasks`."""
    command = [
        sys.executable, "-m", "celery", "-A", "tests.harness.workers.stock_tasks", "worker",
        "-n", "stock@test", "-P", "solo", "-Q", STOCK_QUEUE, "-l", "INFO",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    path = folder / "stock.log"
    with (
        path.open("ab") as log,
        subprocess.Popen(
            command,
            env={**os.environ, "STOCK_URL": url, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            cwd=folder,
        ) as process,
    ):
        try:
            asked = app.control.inspect(["stock@test"], timeout=5, limit=1)
            wait_until(lambda: asked.ping(), "the stock worker answers", timeout_s=60)
            yield
        except BaseException:
            print(path.read_text(errors="replace")[-4000:])  # noqa: T201 - shown with the failure
            raise
        finally:
            end_child(process, 20)


def ours(app: Celery, model: str, *value: Any, **options: Any) -> Any:
    """A job of ours in a canvas; without a value it takes what comes before."""
    kwargs: dict[str, Any] = {"model": model, **({"input": value[0]} if value else {})}
    return app.signature(TASK_NAME, kwargs=kwargs, queue=queue_name(model), **options)


def stock(app: Celery, task: str, *args: Any, **kwargs: Any) -> Any:
    """A task of the stock worker in a canvas."""
    return app.signature(f"stock.{task}", args=args, kwargs=kwargs, queue=STOCK_QUEUE)
