"""The paths of TensorFlow Serving, and who may use each."""

from __future__ import annotations

import re
from typing import Final

from api.http.messages import Reply
from api.routes.table import Operation
from extensions.inference_protocols.tensorflow import calls, status
from extensions.inference_protocols.tensorflow.answers import error_reply
from headrace.access.api_key import Scope
from headrace.errors import HeadraceError

_MODEL: Final = "/v1/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
_LABEL: Final = _MODEL + "/labels/{label}"
#: The paths below /v1/models that OpenAI's API does not have.
_OURS: Final = re.compile(r"/v1/models/[^/]+(:\w*|/metadata|/(versions|labels)/.*)")
#: The last parameter of a path with a verb has it as `NAME:verb`. GET of a model is OpenAI's too.
ROUTES: Final = (
    *(Operation("POST", path, calls.call, Scope.SUBMIT) for path in (_MODEL, _VERSION)),
    Operation("POST", _LABEL, calls.label, Scope.SUBMIT),
    Operation("GET", _LABEL, calls.label, Scope.READ),
    Operation("GET", _VERSION, status.version_status, Scope.READ),
    *(
        Operation("GET", f"{path}/metadata", status.metadata, Scope.READ)
        for path in (_MODEL, _VERSION)
    ),
)


def error_for(path: str, error: HeadraceError) -> Reply | None:
    """Return an error of these paths; None for another path."""
    return error_reply(error) if _OURS.fullmatch(path) else None
