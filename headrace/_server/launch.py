"""Runs a module of the servers in a process with a user's code: `launch MODULE ARGUMENTS`.

`headrace.config.environment` has the command. A process that a handler spawns imports this
module too, as it is the main module, so that names mean the same there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from headrace._server import imports
from headrace.config import handler_files
from headrace.config.environment import package_root, restore_user_environment, server_root

if __name__ in ("__main__", "__mp_main__"):
    imports.install()
    handler_files.install()


def main() -> Any:
    """Run the module that the first argument names, with the user's environment and path."""
    restore_user_environment()
    _put_last()
    del sys.argv[0]
    name = f"headrace._server.{sys.argv[0]}"
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
    return importlib.import_module(name).main()


def _put_last() -> None:
    """Leave out the folder of the servers; that of a checkout goes behind the user's folders."""
    root = str(server_root())
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != root]
    if server_root() == package_root():
        sys.path.append(root)


if __name__ == "__main__":
    sys.exit(main())
