"""Variables that Kubernetes adds to the environment of a container."""

from __future__ import annotations

import re
from typing import Final

#: What Kubernetes adds to a container's environment for each Service of its namespace. For the
#: Service `name`: `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT…`, `NAME_PORT…`.
_SERVICE_LINK: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?"
)
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://\S+")


def is_service_link(variable: str, value: str) -> bool:
    """Return whether Kubernetes, and not the operator, has set a variable, for a Service."""
    if variable.endswith("_PORT") and _SERVICE_URL.fullmatch(value):
        return True
    return _SERVICE_LINK.fullmatch(variable) is not None
