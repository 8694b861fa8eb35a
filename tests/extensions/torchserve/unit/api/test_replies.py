"""JSON for people, and the headers of every answer."""

from __future__ import annotations

import uuid

from extensions.torchserve.api.replies import fixed_headers, new_request_id, status_reply
from extensions.torchserve.config.settings import TorchServeConfig


def test_json_is_indented_and_ends_with_a_newline() -> None:
    assert status_reply("Healthy").body == b'{\n  "status": "Healthy"\n}\n'


def test_no_answer_may_be_kept() -> None:
    assert fixed_headers(TorchServeConfig()) == (
        (b"pragma", b"no-cache"),
        (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
        (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
    )


def test_headers_for_pages_of_other_origins_are_sent_where_they_are_set() -> None:
    config = TorchServeConfig(cors_allowed_origin="*", cors_allowed_methods="GET, POST")
    assert fixed_headers(config)[3:] == (
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, POST"),
    )


def test_a_request_id_is_a_uuid4() -> None:
    name, value = new_request_id()
    assert name == b"x-request-id"
    assert uuid.UUID(value.decode()).version == 4
