"""Writes the dashboard: `python deploy/grafana/build.py`.

Tiles of numbers are on top, then there is one row per question of an operator.

Grafana's own format repeats itself in each panel; `dashboard_rows.py` has what differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from dashboard_rows import FAILURES, ROWS, TILES, Panel, Tile

TARGET: Final = Path(__file__).parent / "dashboards" / "headrace.json"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
HEIGHT: Final = 8
TILE_HEIGHT: Final = 4


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    panels = [_row(1, "Now", 0)]
    for n, tile in enumerate(TILES):
        width = COLUMNS // len(TILES)
        place = {"x": n * width, "y": 1, "w": width, "h": TILE_HEIGHT}
        panels.append(_tile(len(panels) + 1, tile, place))
    y = 1 + TILE_HEIGHT
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
    panels.append(_table(len(panels) + 1, {"x": 0, "y": y, "w": COLUMNS, "h": HEIGHT}))
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
            "legend": {
                "calcs": [],
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
            },  # fmt: skip
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {**_target(n, expr), "legendFormat": legend, "range": True}
            for n, (expr, legend) in enumerate(queries)
        ],
    }


def _tile(number: int, tile: Tile, place: dict[str, int]) -> dict[str, Any]:
    title, unit, text, expr, words, bounds = tile
    # Grafana's first step has no bound.
    steps = [
        {"color": color, "value": value if n else None}
        for n, (color, value) in enumerate(bounds.items())
    ]
    said = {value: {"text": word, "index": n} for n, (value, word) in enumerate(words.items())}
    return {
        "id": number,
        "type": "stat",
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "color": {"mode": "thresholds"},
                "thresholds": {"mode": "absolute", "steps": steps},
                "mappings": [{"type": "value", "options": said}] if said else [],
            },
            "overrides": [],
        },
        "options": {
            "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value", "wideLayout": True, "showPercentChange": False,
            "percentChangeColorMode": "standard",
        },
        "targets": [{**_target(0, expr), "legendFormat": title, "range": True}],
    }  # fmt: skip


def _table(number: int, place: dict[str, int]) -> dict[str, Any]:
    """The failures of each model, a column for each query."""
    names = {f"Value #{_ref(n)}": name for n, name in enumerate(FAILURES)}
    # A click on a model leaves the others out.
    link = {
        "title": "This model alone",
        "url": "/d/headrace?${__url_time_range}&var-model=${__value.raw}",
    }
    return {
        "id": number,
        "type": "table",
        "title": "Failures by model",
        "description": "In the time that is shown; *dead letters* are those that exist now.",
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": "short", "decimals": 0, "custom": {"filterable": True}},
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": "model"},
                    "properties": [{"id": "links", "value": [link]}],
                }
            ],
        },
        "options": {
            "showHeader": True, "cellHeight": "sm", "frameIndex": 0,
            "sortBy": [{"displayName": "failed", "desc": True}],
        },
        "targets": [
            {**_target(n, expr), "instant": True, "format": "table"}
            for n, expr in enumerate(FAILURES.values())
        ],
        # One row a model: the columns of its queries side by side.
        "transformations": [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {"excludeByName": {"Time": True}, "renameByName": names},
            },
        ],
    }  # fmt: skip


def _target(n: int, expr: str) -> dict[str, Any]:
    return {"refId": _ref(n), "datasource": DATASOURCE, "editorMode": "code", "expr": expr}


def _ref(n: int) -> str:
    return chr(ord("A") + n)


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus",
        "hide": 0, "includeAll": False, "multi": False, "refresh": 1,
    }  # fmt: skip


def _models() -> dict[str, Any]:
    query = "label_values(headrace_queue_depth, model)"
    return {
        "name": "model", "type": "query", "label": "model", "datasource": DATASOURCE,
        "query": {"query": query, "refId": "models"}, "refresh": 2,
        "includeAll": True, "allValue": ".*", "multi": True, "sort": 1, "hide": 0,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", "utf-8")
