"""Helpers of handlers: classes by name, and pieces of a reply."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from ts.context import STREAM_NEXT


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Return a class by its name.

    Args:
        class_name: the class, perhaps with its module before it.
        module_prefix: the module; the name before the class then is below it.

    Raises:
        ImportError: there is no such class.
    """
    module_name, _, name = class_name.rpartition(".")
    path = ".".join(part for part in (module_prefix, module_name) if part)
    if not path:
        raise ImportError(f"{class_name}: write the module before the class")
    try:
        return getattr(importlib.import_module(path), name)
    except AttributeError as error:
        raise ImportError(f"the module {path} has no {name}") from error


def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str], message: str, code: int, context: Any
) -> None:
    """Send a piece of the reply to each request, before the handler returns the last piece.

    Args:
        ret: the pieces, by the places of the requests.
        req_id_map: the requests' ids, by their places; those of some requests are enough.
        message, code: a text and a status, which are not used.
    """
    if int(os.environ.get("LOCAL_RANK", "0") or 0) != 0:
        return
    keep = getattr(context, "keep_piece", None)
    if keep is None:
        return
    for idx, request_id in req_id_map.items():
        context.set_response_header(idx, STREAM_NEXT, "true")
        keep(idx, request_id, ret[idx])
