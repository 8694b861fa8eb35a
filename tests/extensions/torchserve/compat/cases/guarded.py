"""Requests to servers as they start by default: tokens are needed, and no model is registered.

All handlers get the envelope `json`, and only log files get metrics. The management interface is a
Unix socket.
"""

from __future__ import annotations

from typing import Final

from tests.extensions.torchserve.compat.cases.table import JSON, Scenario, manage, predict
from tests.extensions.torchserve.compat.servers import FOLDER, Ask

CONFIG: Final = {
    "service_envelope": "json",
    "default_workers_per_model": "1",
    "number_of_netty_threads": "2",
    "management_address": f"unix:{FOLDER}/management.sock",
    "cors_allowed_origin": "https://page.example",
    "cors_allowed_methods": "GET, POST",
    "cors_allowed_headers": "X-One",
}
MODELS: Final = ("noop.mar", "shown=rows.mar")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {{{key}}}"}


INFERENCE: Final = {**JSON, **bearer("inference")}
API: Final = bearer("API")
WRONG: Final = {"Authorization": "Bearer wrong"}
GUARDED: Final = (
    Scenario(
        "tokens",
        (
            predict("shown", b'{"instances": [1]}', headers=INFERENCE, until=200),
            Ask("GET", "/ping", differs="health-without-token"),
            Ask("GET", "/ping", headers=bearer("inference")),
            Ask("GET", "/ping", headers=bearer("management"), differs="health-without-token"),
            predict("noop", b"{}"),
            predict("noop", b"{}", headers=WRONG),
            predict("noop", b"{}", headers={"Authorization": "wrong"}),
            predict("noop", b"{}", headers=bearer("management")),
            predict("noop", b'{"instances": [1]}', headers=INFERENCE),
            Ask("GET", "/nothing", headers=bearer("inference")),
            Ask("GET", "/nothing", differs="unknown-path-without-token"),
            Ask("OPTIONS", "/", look="status"),
            Ask("OPTIONS", "/predictions/noop", look="status"),
            manage("GET", "/models"),
            manage("GET", "/models", headers=bearer("management")),
            manage("GET", "/models", headers=bearer("inference")),
            manage("GET", "/models", headers=API),
            manage("GET", "/models/shown", headers=bearer("management")),
            manage("OPTIONS", "/", look="status"),
            Ask("GET", "/metrics", port="metrics", look="text"),
            Ask("GET", "/api-description", port="metrics", look="status"),
        ),
    ),
    Scenario(
        "no_model_api",
        (
            manage("POST", "/models?url=echo.mar", headers=bearer("management")),
            manage("DELETE", "/models/noop", headers=bearer("management")),
            manage("POST", "/models?url=echo.mar"),
            manage(
                "PUT", "/models/noop?min_worker=1&synchronous=true", headers=bearer("management")
            ),
            manage("PUT", "/models/noop/1.11/set-default", headers=bearer("management")),
        ),
    ),
    Scenario(
        "envelope",
        tuple(
            predict("shown", body, headers={**kind, **bearer("inference")})
            for body, kind in (
                (b'{"instances": ["a", 2, [3]]}', JSON),
                (b'{"instances": [{"b64": "aGVsbG8="}]}', JSON),
                (b'{"rows": [1]}', JSON),
                (b'{"instances": ["a"]}', {}),
                (b"no json", {}),
            )
        ),
    ),
    Scenario(
        "new_tokens",
        (
            manage("GET", "/token?type=inference"),
            manage("GET", "/token?type=inference", headers=WRONG),
            manage("GET", "/token?type=inference", headers=bearer("management")),
            manage("GET", "/token", headers=API),
            manage("GET", "/token?type=nothing", headers=API),
            manage("GET", "/token?type=inference", headers=API, differs="token-in-response"),
            Ask("GET", "/ping", headers=bearer("inference")),
            manage("GET", "/token?type=management", headers=API, differs="token-in-response"),
            manage("GET", "/models", headers=bearer("management")),
            manage("POST", "/token?type=management", headers=API, differs="token-in-response"),
            Ask("GET", "/token?type=management", headers=API, differs="unknown-path-without-token"),
        ),
    ),
)
