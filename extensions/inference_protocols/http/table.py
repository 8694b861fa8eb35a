"""The paths of v2, and who may use each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from api.auth.authenticator import Open
from api.http.messages import Reply
from api.routes.table import Operation
from extensions.inference_protocols.http import endpoints
from extensions.inference_protocols.http.infer import infer
from extensions.inference_protocols.jobs.over_http import error_reply
from headrace.access.api_key import Scope
from headrace.errors import HeadraceError

_PREFIX: Final = "/v2"
_MODEL: Final = "/v2/models/{model}"
#: A model, and a version of it, have the same paths below them.
_BOTH: Final = (_MODEL, _MODEL + "/versions/{version}")
_LOADS: Final = "/v2/repository/models/{model}"


def _routes() -> Iterator[Operation]:
    read, manage = Scope.READ, Scope.MANAGE
    yield Operation("GET", _PREFIX, endpoints.server, Open.ALWAYS)
    yield Operation("GET", "/v2/health/live", endpoints.live, Open.ALWAYS)
    yield Operation("GET", "/v2/health/ready", endpoints.ready, Open.ALWAYS)
    yield Operation("GET", "/v2/models", endpoints.models, read)
    yield Operation("GET", "/v2/models/stats", endpoints.statistics, read)
    for path in _BOTH:
        yield Operation("GET", path, endpoints.metadata, read)
        yield Operation("GET", f"{path}/ready", endpoints.model_ready, read)
        yield Operation("GET", f"{path}/config", endpoints.config, read)
        yield Operation("GET", f"{path}/stats", endpoints.statistics, read)
        yield Operation("POST", f"{path}/infer", infer, Scope.SUBMIT)
    yield Operation("POST", "/v2/repository/index", endpoints.index, read)
    yield Operation("POST", f"{_LOADS}/load", endpoints.load, manage)
    yield Operation("POST", f"{_LOADS}/unload", endpoints.unload, manage)
    for path, setting in (
        ("/v2/trace/setting", endpoints.trace),
        (f"{_MODEL}/trace/setting", endpoints.trace),
        ("/v2/logging", endpoints.logging),
    ):
        yield Operation("GET", path, setting, read)
        yield Operation("POST", path, endpoints.change_setting, manage)
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        for path in (f"/v2/{kind}", f"/v2/{kind}/region/{{name}}"):
            yield Operation("GET", f"{path}/status", endpoints.regions, read)
            yield Operation("POST", f"{path}/register", endpoints.register, manage)
            yield Operation("POST", f"{path}/unregister", endpoints.unregister, manage)


ROUTES: Final = list(_routes())


def error_for(path: str, error: HeadraceError) -> Reply | None:
    """Return an error of these paths; None for another path."""
    return error_reply(error) if path == _PREFIX or path.startswith(f"{_PREFIX}/") else None
