"""The context of handlers: the model, and the requests of the current batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

#: The header of a response: "true" if another piece follows, "false" with the last one.
STREAM_NEXT = "ts_stream_next"


class Headers(dict[str, Any]):
    """Headers by name; a name is found in any case.

    The values of a request's own headers are text. A parameter's name has a mapping with its
    `content-type`.
    """

    def _key(self, name: str) -> str:
        if dict.__contains__(self, name):
            return name
        wanted = name.lower()
        return next((key for key in self if key.lower() == wanted), name)

    @override
    def __getitem__(self, name: str) -> Any:
        return dict.__getitem__(self, self._key(name))

    @override
    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and dict.__contains__(self, self._key(name))

    @override
    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a header; the default without it."""
        return dict.get(self, self._key(name), default)


class RequestProcessor:
    """The headers of one request, and what the handler sets for its response."""

    def __init__(self, request_header: dict[str, Any]) -> None:
        self._headers = Headers(request_header)
        self._response_headers: dict[str, str] = {}
        self._code = 200
        self._phrase: str | None = None

    def get_request_property(self, key: str) -> Any:
        """Return a header of the request; None without it."""
        return self._headers.get(key)

    def get_request_properties(self) -> Headers:
        """Return all headers of the request."""
        return self._headers

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status of the response."""
        self._code = code
        self._phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status of the response."""
        return self._code

    def get_response_status_phrase(self) -> str | None:
        """Return the reason phrase of the response."""
        return self._phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the response."""
        self._response_headers[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        return self._response_headers

    def get_response_header(self, key: str) -> str | None:
        """Return a header of the response; None without it."""
        return self._response_headers.get(key)


class Context:
    """The model, and the requests of the current batch.

    One context lives as long as the model process. Handlers may set attributes of their own.

    Args:
        batch_size: the most requests of a batch.
        gpu: the number of its GPU; None on a CPU.
        limit_max_image_pixels: whether Pillow's limit on the size of images counts.

    Attributes:
        request_ids: the id of each request, by its place in the batch.
        stopping_criteria: a handler's own function for each request, for continuous batching.
        keep_piece: takes a piece of a reply, from `send_intermediate_predict_response`: the place
            of the request, its id and the value; None outside of a model process.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.request_ids: dict[int, str] | None = None
        self.request_processor: list[RequestProcessor] = [RequestProcessor({})]
        self.metrics = metrics
        self.model_yaml_config: dict[str, Any] = (
            {} if model_yaml_config is None else model_yaml_config
        )
        self.stopping_criteria: Any = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"
        self.cl_socket: Any = None
        self.keep_piece: Callable[[int, str, Any], None] | None = None

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of a request."""
        return self.request_ids.get(idx) if self.request_ids else None

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header of a request, in any case of its name; None without it."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> Headers:
        """Return all headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of a response."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the content type of a response; None if the handler has set none."""
        return self.request_processor[idx].get_response_header("content-type")

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers of a response."""
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of a response."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return the status and the reason phrase of a response."""
        one = self.request_processor[idx]
        return one.get_response_status_code(), one.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of one response."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all responses of the batch."""
        for one in self.request_processor:
            one.report_status(code, phrase)

    def get_sequence_id(self, idx: int) -> Any:
        """Return the id of the sequence to which a request belongs; None without one."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]
