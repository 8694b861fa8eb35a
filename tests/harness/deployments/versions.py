"""Another version of Headrace: a copy of the tree that writes what this one does not know."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.harness.servers.up import ROOT

VERSION: Final = "9.9.9"
PACKAGES: Final = ("headrace", "api", "workers", "handlers", "extensions")
#: A field of job records that this version does not know.
RECORD_FIELD: Final = "zz"

#: What a later version might change, each in what travels between processes of both versions.
CHANGES: Final = {
    "headrace/_version.py": (("__version__ = ", f'__version__ = "{VERSION}"  # '),),
    "headrace/queue/submission.py": (
        ("fields: list[Arg] = [JobField.MODEL, model.name,",
         f'fields: list[Arg] = ["{RECORD_FIELD}", "1", JobField.MODEL, model.name,'),
    ),
    # The report of a worker, and the checkpoint of a batch.
    "headrace/observability/worker_report.py": (
        ("    state: str\n    replicas: int = 0\n", '    state: str\n    next_field: str = "x"\n'
         "    replicas: int = 0\n"),
    ),
    "headrace/runs/checkpoint.py": (
        ("    started_at: float = 0.0\n",
         '    started_at: float = 0.0\n    next_field: str = "x"\n'),
    ),
}  # fmt: skip


#: Code appended to a module: it wraps what other modules import.
ADDITIONS: Final = {
    # A header of the task message, and a member of our own.
    "headrace/jobs/message_writer.py": """
_this_write = write_message


def write_message(*args, **kwargs):
    raw = _this_write(*args, **kwargs)
    more = raw.replace(b',"expires":', b',"next":{"a":[1]},"expires":', 1)
    more = more.replace(b'"headrace":{', b'"headrace":{"next":1,', 1).replace(b'1,}', b'1}', 1)
    assert len(more) >= len(raw) + 25, raw
    return more
""",
}


def next_version(folder: Path) -> Path:
    """Write the next version's tree into a folder, for a PYTHONPATH.

    Every script differs, so that Redis knows those of both versions by other hashes.
    """
    for package in PACKAGES:
        # Copied with the files that Python has compiled, which are valid for what is not changed
        # below. A file that another process compiles now has a temporary name, so it is left out.
        unfinished = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / package, folder / package, ignore=unfinished)
    for name, changes in CHANGES.items():
        path = folder / name
        text = path.read_text("utf-8")
        for old, new in changes:
            said = f"{name} says {old!r} {text.count(old)} times: correct it in {__file__}"
            assert text.count(old) == 1, said
            text = text.replace(old, new)
        path.write_text(text, "utf-8")
    for name, addition in ADDITIONS.items():
        with (folder / name).open("a") as file:
            file.write(addition)
    for script in folder.rglob("*.lua"):
        with script.open("a") as file:
            file.write(f"-- {VERSION}\n")
    return folder
