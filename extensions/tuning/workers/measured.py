"""Starts the measurement of a model's variants as a worker starts a model process.

`python -m extensions.tuning.workers.measured FRAME` becomes `extensions.tuning.workers.measure`,
with the threads and the allocator that a model process has.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.environment import launch_command
from workers.replicas.devices import model_environ, tuned


def main() -> None:
    """Replace this process by the one that measures."""
    file = sys.argv[1]
    frame: dict[str, Any] = msgspec.json.decode(Path(file).read_bytes())
    environ = model_environ(os.environ, frame["replicas"])
    if frame["malloc_tuning"]:
        environ = tuned(environ, frame["device"])
    command = launch_command("extensions.tuning.workers.measure", file)
    # Ctrl-C signals the whole foreground group; the command ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.execve(command[0], command, environ)  # noqa: S606


if __name__ == "__main__":
    main()
