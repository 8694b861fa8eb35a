"""A user's project whose modules have the names of the servers' packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.harness.archives import write_folder, write_zip

#: The variables that the child of a handler shows.
SHOWN: Final = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONWARNINGS")
_HANDLER: Final = '''\
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import api
import extensions
import workers.rooms
from handlers.base import Base


def in_child(item):
    from handlers.base import Base

    return [Base.owner, workers.rooms.OWNER, item]


class Mine(Base):
    """Answers with the owner of each module that it, its pool and its child import."""

    def preprocess(self, inputs):
        import handlers.base

        return [[handlers.base.Base.owner, item] for item in inputs]

    def inference(self, items):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return [
                {
                    "modules": [Base.owner, workers.rooms.OWNER, api.OWNER, extensions.OWNER],
                    "pool": pool.submit(in_child, item).result(),
                    "child": subprocess.check_output([sys.executable, "tool/main.py"], text=True),
                }
                for item in items
            ]
'''
_FILES: Final = {
    # No __init__.py: a regular package of this name elsewhere would win.
    "handlers/base.py": (
        "from headrace import Handler\n\n\n"
        "class Base(Handler):\n    owner = 'user'\n    overlap = True\n"
    ),
    "handlers/mine.py": _HANDLER,
    "handlers/my-own.v2.py": _HANDLER,
    "workers/__init__.py": "",
    "workers/rooms.py": "OWNER = 'user'\n",
    "api.py": "OWNER = 'user'\n",
    "extensions/__init__.py": "OWNER = 'user'\n",
    "tool/main.py": (
        "import json, os, neighbour\n"
        f"print(json.dumps([neighbour.OWNER, *map(os.environ.get, {SHOWN})]))\n"
    ),
    "tool/neighbour.py": "OWNER = 'user'\n",
}
_ARCHIVE: Final = {
    "handlers.py": (
        "import workers\nfrom ts.handler_utils.preprocess import dali\n\n\n"
        "def handle(data, context):\n    import api\n\n"
        "    return data and [{'owners': [workers.OWNER, api.OWNER]} for _ in data]\n"
    ),
    "workers.py": "OWNER = 'user'\n",
    "api/__init__.py": "OWNER = 'user'\n",
    "MAR-INF/MANIFEST.json": json.dumps(
        {"runtime": "python", "model": {"modelName": "packed", "handler": "handlers.py"}}
    ),
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "mine": {"handler": "handlers/mine.py"},
    "named": {"handler": "handlers.mine:Mine"},
    "odd": {"handler": "handlers/my-own.v2.py", "preprocess_processes": 1},
    "packed": {"source": "packed.mar"},
}


def write_project(folder: Path) -> Path:
    """Write the project with its archive; return the folder."""
    write_folder(folder, _FILES)
    write_zip(folder / "packed.mar", [(name, text.encode()) for name, text in _ARCHIVE.items()])
    return folder


def expected(model: str, item: int, **variables: str) -> dict[str, Any]:
    """What a model answers to a number, where the user has set these variables of `SHOWN`."""
    if model == "packed":
        return {"owners": ["user", "user"]}
    return {
        "modules": ["user"] * 4,
        "pool": ["user", "user", ["user", item]],
        "child": json.dumps(["user", *map(variables.get, SHOWN)]) + "\n",
    }
