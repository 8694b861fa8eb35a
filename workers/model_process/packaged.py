"""Starts the model process of a model with its own packages: installs them, then becomes it.

A separate program, as Python's path must be complete before anything is imported. The worker starts
it as `workers.model_process.packaged FD FD FILE FOLDER`. FD FD are the arguments of the
model process, FILE is the model's requirements.txt, and FOLDER has all environments. An error is
the model's load error.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from headrace.config.environment import launch_command, with_packages, with_server_path
from headrace.errors import ConfigError
from headrace.models.requirements import installed
from workers.protocol.frames import (
    PARENT_VARIABLE,
    TO_MODEL,
    FrameSocket,
    FromModel,
    NotLoaded,
    ToModel,
    write_stacks_to,
)


def main() -> None:
    """Install the packages and become the model process."""
    from workers.model_process.startup import die_with_parent

    die_with_parent(int(os.environ.get(PARENT_VARIABLE, "0").partition(":")[0]))
    descriptor, stacks, file, environments = sys.argv[1:5]
    write_stacks_to(int(stacks))
    try:
        packages = installed(Path(file), Path(environments))
    except ConfigError as error:
        ours = socket.socket(fileno=int(descriptor))
        frames: FrameSocket[FromModel, ToModel] = FrameSocket(ours, TO_MODEL)
        frames.send(NotLoaded(error.message_with_hint))
        return
    for number in (descriptor, stacks):
        os.set_inheritable(int(number), True)
    command = launch_command("workers.model_process", descriptor, stacks)
    environ = with_packages(with_server_path(os.environ), packages)
    os.execve(command[0], command, environ)  # noqa: S606


if __name__ == "__main__":
    main()
