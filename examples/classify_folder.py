"""Run every file of a folder through a model and write one line of CSV for each.

    python examples/classify_folder.py examples/digits digits.csv --model digits

It handles any number of files, with up to a thousand jobs in flight. A job's id is made from its
file. So a second run, for example after Ctrl-C, finds the results of the first one and repeats no
work. If a file fails, its line has the error, the others continue, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from pathlib import Path

from headrace import Client
from headrace.errors import HeadraceError


def main() -> int:
    """Map the files and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default="digits")
    arguments = parser.parse_args()
    files = (path for path in sorted(arguments.folder.rglob("*")) if path.is_file())

    def job_id(path: Path) -> str:
        stat = path.stat()
        version = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        return f"{arguments.model}-{hashlib.sha256(version.encode()).hexdigest()[:32]}"

    failed = total = 0
    with Client() as client, arguments.output.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["file", "status", "result"])
        # Low priority: jobs with a waiting client go first.
        for result in client.map(
            arguments.model, files, ids=job_id, priority=9, return_errors=True
        ):
            name = result.input.relative_to(arguments.folder)
            if result.error is None:
                table.writerow([name, "succeeded", json.dumps(result.value)])
            else:
                failed += 1
                table.writerow([name, "failed", str(result.error)])
            total += 1
    print(f"{total} files, {failed} failed: {arguments.output}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadraceError as error:
        sys.exit(f"{error}\n{error.hint}")
