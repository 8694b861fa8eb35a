"""What this extension adds to the API: v2, and the paths of TensorFlow Serving."""

from __future__ import annotations

from typing import Final

from api.extension import ApiPart
from api.http.messages import Reply
from extensions.inference_protocols.http import table as v2
from extensions.inference_protocols.tensorflow import table as tensorflow
from extensions.inference_protocols.tensorflow.status import members
from headrace.errors import HeadraceError


def _error_reply(path: str, error: HeadraceError) -> Reply | None:
    return v2.error_for(path, error) or tensorflow.error_for(path, error)


PART: Final = ApiPart(
    routes=[*v2.ROUTES, *tensorflow.ROUTES],
    error_reply=_error_reply,
    header_prefixes=("inference-header-",),
    model_members=members,
)
