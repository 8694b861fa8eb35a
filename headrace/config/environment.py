"""The folders of the code, and the environment of processes that run it or a user's code.

A server finds its packages by variables of its own. A handler, and what it starts, gets the values
that the user has set.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

#: Here and not in the client, which servers do not import.
ENV_URL: Final = "HEADRACE_URL"


def package_root() -> Path:
    """Return the folder that holds the package `headrace`."""
    return Path(__file__).resolve().parents[2]


def server_root() -> Path:
    """Return the folder of the packages `api`, `workers` and `handlers`, for PYTHONPATH.

    In a checkout it also holds `headrace`; in a wheel it is inside `headrace`.
    """
    inside = package_root() / "headrace" / "_server"
    return inside if (inside / "workers").is_dir() else package_root()


#: What Kubernetes adds to a container's environment for each Service of its namespace. For the
#: Service `name`: `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT…`, `NAME_PORT…`.
_SERVICE_LINK: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?"
)
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://\S+")


def is_service_link(variable: str, value: str) -> bool:
    """Return whether Kubernetes, and not the operator, has set a variable, for a Service."""
    is_url = variable.endswith("_PORT") and _SERVICE_URL.fullmatch(value) is not None
    return is_url or _SERVICE_LINK.fullmatch(variable) is not None


#: Holds the user's values of `_REPLACED` as JSON; null for a variable that was not set.
_KEPT: Final = "HEADRACE_USER_ENVIRONMENT"
_REPLACED: Final = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS")
_LAUNCH: Final = "headrace._server.launch"


def with_server_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds the servers' packages first.

    The user's own path and the working directory follow. The user's values are kept in it.
    """
    if _KEPT in environ:
        return dict(environ)
    # Celery puts the working directory first on the path unless the path has it already.
    path = [str(server_root()), *_entries(environ), os.getcwd()]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        _KEPT: json.dumps({name: environ.get(name) for name in _REPLACED}),
    }


def with_packages(environ: Mapping[str, str], packages: Path) -> dict[str, str]:
    """Return an environment in which Python, also of children, finds these packages first."""
    result = {**environ, "PYTHONPATH": _joined([*_entries(environ), str(packages)])}
    if _KEPT in result:
        kept = json.loads(result[_KEPT])
        kept["PYTHONPATH"] = _joined([kept["PYTHONPATH"], str(packages)])
        result[_KEPT] = json.dumps(kept)
    return result


def restore_user_environment() -> None:
    """Give this process, and so its children, the values that the user has set."""
    kept: dict[str, str | None] = json.loads(os.environ.pop(_KEPT, "{}"))
    for name, value in kept.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def launch_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the servers in a process with a user's code.

    The process needs the environment that `with_server_path` returns.
    """
    # -P, as a handler's children do not inherit it.
    return [sys.executable, "-P", "-m", _LAUNCH, module, *arguments]


def _entries(environ: Mapping[str, str]) -> list[str]:
    return [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _joined(entries: Iterable[str | None]) -> str:
    return os.pathsep.join(filter(None, entries))
