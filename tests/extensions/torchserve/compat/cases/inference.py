"""Requests of the inference interface: URLs, bodies, what handlers return and how they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.extensions.torchserve.compat.cases.table import (
    BINARY,
    FORM,
    JSON,
    LIMIT,
    MULTIPART,
    TEXT,
    Scenario,
    manage,
    multipart,
    predict,
    register,
)
from tests.extensions.torchserve.compat.servers import Ask

#: Bodies of each kind, good and bad.
BODIES: Final[tuple[tuple[bytes, Mapping[str, str]], ...]] = (
    (b'{"a": [1, 2.5, null, "\xc3\xb6"]}', JSON),
    (b"[1, 2, 3]", {"Content-Type": "application/json; charset=utf-8"}),
    (b'"text"', {"Content-Type": "APPLICATION/JSON"}),
    (b"12345678901234567890123", JSON),
    (b'{"a": ', JSON),
    (b"", JSON),
    (b"NaN", JSON),
    ("text ö".encode(), TEXT),
    ("text ö".encode("latin-1"), {"Content-Type": "text/plain; charset=latin-1"}),
    (b"<p>text</p>", {"Content-Type": "text/html"}),
    (b"a,b\n1,2\n", {"Content-Type": "text/csv"}),
    (b"\x00\x01\xff", BINARY),
    (b"\x89PNG", {"Content-Type": "image/png"}),
    (b"no type", {}),
    (b"", {}),
    (b"odd", {"Content-Type": "nonsense"}),
    (b'{"a": 1}', {"Content-Type": "application/problem+json"}),
    (b"name=value&other=1%202", FORM),
    (multipart(("data", None, None, b"plain")), MULTIPART),
    (multipart(("data", "a.bin", "application/octet-stream", b"\x00\xff")), MULTIPART),
    (multipart(("data", "a.json", "application/json", b'{"a": 1}')), MULTIPART),
    (multipart(("data", "a.txt", "text/plain", b"text")), MULTIPART),
)
TWO_FIELDS: Final = multipart(
    ("first", None, None, b"one"), ("second", "b.txt", "text/plain", b"two")
)
RETURNED: Final = (
    "str", "empty", "bytes", "bytearray", "dict", "list", "nothing", "empty dict", "tuple", "nan",
    "int", "big int", "float", "bool", "none", "set", "numpy", "numpy scalar", "int keys",
    "object", "unknown",
)  # fmt: skip


def _of(sequence: str, **more: str) -> dict[str, str]:
    """The headers of a request of a sequence."""
    return {"ts_request_sequence_id": sequence, **more}


INFERENCE: Final = (
    Scenario(
        "paths",
        (
            Ask("GET", "/ping"),
            Ask("POST", "/ping"),
            Ask("GET", "/ping/"),
            Ask("GET", "/"),
            Ask("GET", "/nothing"),
            Ask("GET", "/nothing/at/all/here"),
            Ask("GET", "/predictions"),
            Ask("POST", "/predictions/"),
            Ask("GET", "/predictions/unknown"),
            Ask("GET", "/predictions/noop/9.9"),
            Ask("POST", "/explanations/unknown"),
            Ask("POST", "/v1/models/unknown:predict", b"{}", JSON),
            Ask("POST", "/v1/models/noop:nothing", b"{}", JSON),
            Ask("POST", "/v2/models/unknown/infer", b"{}", JSON),
            Ask("GET", "/v2/models/noop/nothing"),
            Ask("POST", "/unknown/predict"),
            Ask("POST", "/models/unknown/invoke"),
            Ask("POST", "/invocations?model_name=unknown"),
            Ask("POST", "/wfpredict/unknown"),
            Ask("GET", "/v2"),
            Ask("GET", "/v2/health/live"),
            Ask("GET", "/models"),
            Ask("GET", "/token"),
            Ask("GET", "/metrics", differs="native-metrics"),
        ),
    ),
    Scenario(
        "noop",
        (
            *(
                Ask(method, "/predictions/noop")
                for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
            ),
            Ask("POST", "/predictions/noop/1.11"),
            Ask("POST", "/predictions/noop/"),
            Ask("POST", "/predictions/noop/1.11/more/of/it"),
            Ask("POST", "/predictions/noop?x=1&y"),
            Ask("GET", "/predictions/noop", times=3),
            Ask("POST", "/invocations?model_name=noop"),
            Ask("POST", "/invocations", multipart(("model_name", None, None, b"noop")), MULTIPART),
            Ask("POST", "/invocations", b"model_name=noop", FORM),
            Ask("POST", "/models/noop/invoke", b"x"),
            Ask("POST", "/noop/predict", b"x"),
            Ask("POST", "/noop/1.11/predict", b"x"),
            Ask("POST", "/noop/9.9/predict", b"x"),
            Ask("POST", "/v1/models/noop:predict", b'{"instances": [1]}', JSON),
            Ask("POST", "/v2/models/noop/infer", b'{"inputs": []}', JSON),
        ),
    ),
    Scenario("echo", tuple(predict("echo", body, headers=h) for body, h in BODIES), ("echo",)),
    Scenario(
        "text_of_data",
        tuple(predict("text_of_data", body, headers=h) for body, h in BODIES),
        ("text_of_data",),
    ),
    Scenario(
        "fields",
        (
            predict("fields", TWO_FIELDS, headers=MULTIPART),
            predict("fields", b"a=1&b=two%20words&a=3", headers=FORM),
            predict("fields?q=1", b"x"),
            Ask("POST", "/invocations?model_name=fields&q=1&r=%C3%B6", b"x"),
            Ask("POST", "/models/fields/invoke?q=1", b'{"a": 1}', JSON),
            Ask("GET", "/models/fields/invoke?q=1&q=2&empty="),
            Ask("GET", "/fields/predict?data=5"),
            Ask("POST", "/fields/predict?body=5", b"6"),
            Ask("POST", "/fields/1.0/predict?data=5", TWO_FIELDS, MULTIPART),
            Ask("POST", "/v1/models/fields:predict?q=1", b'{"instances": [1]}', JSON),
            predict("fields", b"no parts", headers=MULTIPART, differs="unreadable-form"),
            predict(
                "fields",
                b"x",
                headers={"Content-Type": "multipart/form-data"},
                differs="unreadable-form",
            ),
        ),
        ("fields",),
    ),
    Scenario(
        "returns",
        (
            *(predict("returns", name.encode()) for name in RETURNED),
            predict("returns", b"no list"),
            predict("returns", b"too few"),
            predict("returns", b"tensor", look="status"),
        ),
        ("returns",),
    ),
    Scenario(
        "raises",
        (
            *(
                predict("raises", text)
                for text in (b"cuda", b"memory", b"prediction", b"prediction without code")
            ),
            predict("raises", b"prediction", times=2),
            predict("raises", b"key"),
            predict("raises", b"bad"),
            predict("raises", b"good"),
        ),
        ("raises",),
    ),
    Scenario(
        "response_headers",
        (predict("response_headers", b"x"), predict("response_headers", b"json")),
        ("response_headers",),
    ),
    Scenario(
        "statuses",
        (
            *(
                predict("statuses", text)
                for text in (
                    b"200",
                    b"201",
                    b"202",
                    b"302",
                    b"400",
                    b"404",
                    b"418",
                    b"500",
                    b"507",
                    b"599",
                    b"all",
                )
            ),
        ),
        ("statuses",),
    ),
    Scenario(
        "request_headers",
        (
            predict("request_headers", b"x", headers={"x-one": "1"}, differs="no-content-type"),
            predict("request_headers", b"{}", headers={**JSON, "x-one": "1", "explain": "True"}),
            Ask("POST", "/explanations/request_headers", b"x", differs="no-content-type"),
            predict("request_headers", TWO_FIELDS, headers=MULTIPART),
            predict("all_headers", b"x", headers={"x-one": "1", "Accept": "*/*"}),
            predict("all_headers", b"x"),
            predict("all_headers/1.0", b"x"),
            predict("all_headers/1.0/v1/chat/completions", b"x", headers={"url_path": "mine"}),
            Ask("GET", "/predictions/all_headers/1.0/a%20b/"),
        ),
        ("request_headers", "all_headers"),
    ),
    Scenario(
        "explained",
        (
            predict("explained", b"1", headers=TEXT),
            Ask("POST", "/explanations/explained", b"1", TEXT),
            Ask("POST", "/explanations/explained/1.0", b"1", TEXT),
            Ask("POST", "/explanations/explained/9.9", b"1", TEXT),
            Ask("POST", "/explanations/explained", b'{"target": 1}', JSON),
            Ask("POST", "/v1/models/explained:explain", b"1", TEXT),
            Ask("POST", "/v2/models/explained/explain", b"1", TEXT),
            Ask("POST", "/explanations/noop", b"1"),
        ),
        ("explained",),
    ),
    Scenario(
        "sizes",
        (
            predict("sized", b"0"),
            predict("sized", b"1000"),
            predict("sized", b"%d" % (LIMIT + 1000)),
            predict("sized", b"1"),
            predict("sized", b"1" * (LIMIT + 10_000)),
        ),
        ("sized",),
    ),
)

SHAPES: Final = (
    Scenario(
        "entry_points",
        (
            predict("noop_function", b"x"),
            predict("entry_point", b"x"),
            predict("entry_point_file", b"x"),
            predict("handler_name", b"x"),
        ),
        ("noop_function", "entry_point", "entry_point_file", "handler_name"),
    ),
    Scenario(
        "formats",
        (
            predict("no_archive", b"x"),
            manage("GET", "/models/no_archive"),
            predict("tgz", b"x"),
            manage("GET", "/models/tgz"),
            register("no_manifest"),
            register("no_manifest", handler="noop_function:handle"),
            register("no_manifest", handler="noop_function:handle", model_name="no_manifest"),
            predict("no_manifest", b"x"),
            manage("GET", "/models/no_manifest"),
            manage("DELETE", "/models/no_manifest"),
            register("no_manifest", handler="noop_function.py", model_name="other_name"),
            predict("other_name", b"x"),
            manage("DELETE", "/models/other_name"),
        ),
        ("no_archive", "tgz"),
    ),
    Scenario(
        "context",
        (predict("context_info", b"x"),),
        ("context_info",),
    ),
    Scenario("relative_files", (predict("relative_files", b"x"),), ("relative_files",)),
    Scenario(
        "same_module_names",
        (predict("first_model", b"x"), predict("second_model", b"x")),
        ("first_model", "second_model"),
    ),
    Scenario(
        "weights",
        (
            predict("eager", b"[1, 2, 3]"),
            predict("eager", b"[1, 2, 3]", headers=JSON),
            predict("eager", b"[1]", headers=JSON),
            predict("script", b"[1, 2, 3]", headers=JSON),
            predict("labelled", b'{"x": [1, 2, 3]}', headers=JSON),
        ),
        ("eager", "script", "labelled"),
    ),
    Scenario(
        "micro_batched",
        (predict("micro_batched", b"a"), predict("micro_batched", b"b", times=3)),
        ("micro_batched",),
    ),
    Scenario(
        "yaml_config",
        (
            register(
                "yaml_config",
                batch_size=2,
                response_timeout=611,
                startup_timeout=612,
                initial_workers=2,
            ),
            predict("yaml_config", b"x"),
            manage("GET", "/models/yaml_config"),
            manage("DELETE", "/models/yaml_config"),
        ),
    ),
    Scenario(
        "requirements",
        (
            predict("needs_package", b"x"),
            register("needs_missing_package"),
            manage("GET", "/models/needs_missing_package", differs="failed-registration"),
        ),
        ("needs_package",),
    ),
    Scenario(
        "async_and_metrics",
        (
            predict("async_handle", b"x"),
            predict("prints", b"x"),
            predict("custom_metrics", b"x"),
        ),
        ("async_handle", "prints", "custom_metrics"),
    ),
    Scenario(
        "sequences",
        (
            predict("counted", b"x", headers=_of("a", ts_request_sequence_start="true")),
            predict("counted", b"x", headers=_of("a")),
            predict("counted", b"x", headers=_of("a"), times=3),
            predict("counted", b"x", headers=_of("a", ts_request_sequence_end="true")),
            predict("counted", b"x"),
            predict("counted", b"x", headers=_of("b")),
            predict("counted", b"x"),
            manage("GET", "/models/counted"),
            predict("counted", b"end", headers=_of("a")),
            predict("counted", b"x", headers=_of("b"), differs="ended-sequence"),
            manage("PUT", "/models/counted?min_worker=2&synchronous=true", differs="one-worker"),
            *(
                ask
                for model in ("silent", "timed")
                for ask in (
                    predict(model, b"x", headers=_of("a"), until=200),
                    predict(model, b"x", headers=_of("b"), until=200),
                    predict(model, b"x", headers=_of("a"), until=200),
                    manage("GET", f"/models/{model}"),
                )
            ),
            predict("endless", b"x", differs="no-idle-time"),
            manage("GET", "/models/endless"),
            predict("not_sequences", b"x"),
            predict("not_sequences", b"x", headers=_of("a")),
            manage("GET", "/models/not_sequences"),
        ),
        ("counted", "silent", "timed", "endless", "not_sequences"),
    ),
)
