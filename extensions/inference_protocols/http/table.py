"""The paths of v2, and who may use each."""

from __future__ import annotations

from typing import Final

from api.extension import ApiPart
from api.http.messages import Reply
from api.routes.table import Operation
from extensions.inference_protocols.http.errors import error_reply
from extensions.inference_protocols.http.infer import infer
from headrace.access.api_key import Scope
from headrace.errors import HeadraceError

_PREFIX: Final = "/v2"
_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"


def _error_reply(path: str, error: HeadraceError) -> Reply | None:
    return error_reply(error) if path == _PREFIX or path.startswith(f"{_PREFIX}/") else None


PART: Final = ApiPart(
    routes=[Operation("POST", f"{path}/infer", infer, Scope.SUBMIT) for path in (_MODEL, _VERSION)],
    error_reply=_error_reply,
    header_prefixes=("inference-header-",),
)
