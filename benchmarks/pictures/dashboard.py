"""Draws the dashboard: `python -m benchmarks.pictures.dashboard [--seconds N] [--into FILE]`.

Grafana is not needed. An API, a worker and Debian's Prometheus run under a load with failures, and
matplotlib draws the results of every panel's queries.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import matplotlib as mpl
from matplotlib.figure import Figure

from tests.harness.monitoring.monitoring import DEPLOY, Prometheus, prometheus
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import RunningUp, started
from tests.harness.workers.worker import HANDLERS, celery_worker, write_models

DASHBOARD: Final = DEPLOY / "grafana" / "dashboards" / "headrace.json"
#: The variables that Grafana would set.
VARIABLES: Final = {"$model": ".*", "$__rate_interval": "10s", "$__range": "90s"}
GPUS: Final = {"CUDA_VISIBLE_DEVICES": "0,1"}
TRICKY: Final = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
MODELS: Final[dict[str, dict[str, Any]]] = {
    "classify": {"handler": TRICKY, "device": "cpu", "max_batch_size": 16, "max_retries": 1,
                 "retry_backoff_s": 0.5, "options": {"pause_s": 0.02, "item_s": 0.002}},
    "detect": {"handler": TRICKY, "device": "cpu", "max_batch_size": 4, "max_queue_depth": 400,
               "max_jobs": 300, "options": {"pause_s": 0.03, "item_s": 0.02}},
}  # fmt: skip
PANEL_INCHES: Final = (5.2, 2.6)


@contextmanager
def site(folder: Path) -> Iterator[tuple[str, Prometheus]]:
    """Yield the API's address and its Prometheus."""
    path = write_models(folder, **MODELS)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        api = RunningUp(folder, HEADRACE_REDIS_URL=server.url)
        api.arguments = ["api", "--port", str(api.port), "--models", str(path)]
        stack.enter_context(started(api))
        watching = stack.enter_context(
            prometheus(folder / "prometheus", f"127.0.0.1:{api.port}", "127.0.0.1:9")
        )
        worker = stack.enter_context(
            celery_worker(
                server.url, path, folder, node="gpu0@host", app="tests.harness.workers.gpu_app",
                environ=GPUS,
            )
        )  # fmt: skip
        worker.wait_ready(*MODELS, timeout_s=120)
        api.wait_for("listening on")
        yield f"http://127.0.0.1:{api.port}", watching


def load(url: str, stop: threading.Event) -> None:
    """Submit waves of jobs until `stop` is set; some of them fail in every possible way."""
    chance = random.Random(7)
    with httpx2.Client(base_url=f"{url}/api/v1/models", timeout=60) as http:
        while not stop.wait(0.05):
            wave = 8 if time.monotonic() % 30 < 15 else 2
            for _ in range(wave):
                draw = chance.random()
                value: object = {"n": draw}
                query = f"priority={chance.choice((0, 3, 9))}"
                if draw < 0.03:
                    value = {"do": "raise"}
                elif draw < 0.05:
                    value = {"do": "transient"}
                elif draw < 0.052:
                    value = {"do": "segfault"}
                elif draw < 0.07:
                    query += "&expires=0.01"
                model = "classify" if draw < 0.6 else "detect"
                http.post(f"/{model}/jobs?{query}", json=value)
            http.get("/missing")


def draw(watching: Prometheus, since: float, until: float) -> Figure:
    """Draw every panel at its place."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(PANEL_INCHES[0] * 3.4, PANEL_INCHES[1] * height / 8), dpi=70)
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 9})
    for panel in panels:
        at = panel["gridPos"]
        left, top = at["x"] / 24, 1 - at["y"] / height
        if panel["type"] == "row":
            figure.text(0.01, top - 0.6 / height, panel["title"], fontsize=13, weight="bold")
            continue
        axes = figure.add_axes(
            (left + 0.03, top - (at["h"] - 2.2) / height, at["w"] / 24 - 0.045,
             (at["h"] - 3.4) / height)
        )  # fmt: skip
        axes.set_title(f"{panel['title']} [{panel['fieldConfig']['defaults']['unit']}]", loc="left")
        if panel["type"] != "timeseries":
            axes.set_axis_off()
            (_number if panel["type"] == "stat" else _table)(axes, watching, panel, until)
            continue
        axes.grid(alpha=0.3)
        for target in panel["targets"]:
            _plot(axes, watching, target, since, until)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelbottom=False)
        axes.legend(fontsize=5.5, ncols=2, loc="upper left", framealpha=0.6)
    return figure


def _filled_in(target: dict[str, Any]) -> str:
    expr = str(target["expr"])
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def _number(axes: Any, watching: Prometheus, panel: dict[str, Any], until: float) -> None:
    (target,) = panel["targets"]
    (series,) = watching.get("query", query=_filled_in(target), time=f"{until}")["result"]
    axes.text(0.1, 0.3, f"{float(series['value'][1]):.3g}", fontsize=20)


def _table(axes: Any, watching: Prometheus, panel: dict[str, Any], until: float) -> None:
    names = panel["transformations"][1]["options"]["renameByName"]
    rows: dict[str, dict[str, str]] = {}
    for target in panel["targets"]:
        found = watching.get("query", query=_filled_in(target), time=f"{until}")["result"]
        for series in found:
            row = rows.setdefault(series["metric"]["model"], {})
            row[names[f"Value #{target['refId']}"]] = f"{float(series['value'][1]):.0f}"
    axes.table(
        [[rows[model].get(name, "") for name in names.values()] for model in sorted(rows)],
        rowLabels=sorted(rows), colLabels=list(names.values()), loc="upper center",
    )  # fmt: skip


def _plot(
    axes: Any, watching: Prometheus, target: dict[str, Any], since: float, until: float
) -> None:
    found = watching.get(
        "query_range", query=_filled_in(target), start=f"{since}", end=f"{until}", step="1"
    )
    for series in found["result"]:
        legend = re.sub(
            r"\{\{(\w+)\}\}",
            lambda match: series["metric"].get(match.group(1), ""),  # noqa: B023
            target["legendFormat"],
        )
        times = [float(at) - since for at, _ in series["values"]]
        axes.plot(times, [float(value) for _, value in series["values"]], label=legend, lw=1)


def main() -> None:
    """Run the load, and draw the dashboard."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--into", type=Path, default=Path("dashboard.png"))
    arguments = parser.parse_args()
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as name, site(Path(name)) as (url, watching):
        began = time.time()
        thread = threading.Thread(target=load, args=(url, stop), daemon=True)
        thread.start()
        time.sleep(arguments.seconds)
        until = time.time()
        stop.set()
        thread.join(60)
        draw(watching, began, until).savefig(arguments.into)
    print(arguments.into)


if __name__ == "__main__":
    main()
