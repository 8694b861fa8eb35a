"""Writes the dashboard: `python deploy/grafana/build.py`. One row per question of an operator.

Grafana's own format repeats itself in each panel; `dashboard_rows.py` has what differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from dashboard_rows import ROWS, Panel

TARGET: Final = Path(__file__).parent / "dashboards" / "headrace.json"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
HEIGHT: Final = 8


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in ROWS:
        panels.append(_row(len(panels) + 1, question, y))
        y += 1
        width = COLUMNS // (3 if len(row) % 4 else 4)
        for n, panel in enumerate(row):
            place = {
                "x": n * width % COLUMNS,
                "y": y + n * width // COLUMNS * HEIGHT,
                "w": width,
                "h": HEIGHT,
            }
            panels.append(_graph(len(panels) + 1, panel, place))
        y = place["y"] + HEIGHT
    return {
        "uid": "headrace",
        "title": "Headrace",
        "tags": ["headrace"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), _models()]},
        "panels": panels,
    }


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {
        "id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place,
        "panels": [],
    }  # fmt: skip


def _graph(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    title, unit, text, queries = panel
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": {"showPoints": "never"}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": expr,
                "legendFormat": legend,
                "range": True,
            }
            for n, (expr, legend) in enumerate(queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus",
        "hide": 0, "includeAll": False, "multi": False, "refresh": 1,
    }  # fmt: skip


def _models() -> dict[str, Any]:
    query = "label_values(headrace_queue_depth, model)"
    return {
        "name": "model", "type": "query", "label": "model", "datasource": DATASOURCE,
        "definition": query, "query": {"query": query, "refId": "models"}, "refresh": 2,
        "includeAll": True, "allValue": ".*", "multi": True, "sort": 1, "hide": 0,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", "utf-8")
