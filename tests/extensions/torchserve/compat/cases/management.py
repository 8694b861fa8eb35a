"""Requests of the management and metrics interfaces, and models that fail."""

from __future__ import annotations

from typing import Final

from tests.extensions.torchserve.compat.cases.table import JSON, Scenario, manage, predict, register
from tests.extensions.torchserve.compat.servers import Ask

FAILURES: Final = (
    Scenario(
        "loads_badly",
        (
            register("init_error"),
            manage("GET", "/models/init_error"),
            register("init_error", initial_workers=0),
            manage("PUT", "/models/init_error?min_worker=1&synchronous=true"),
            manage("GET", "/models/init_error", look="status"),
            manage("DELETE", "/models/init_error"),
            register("init_runtime_error"),
            # TorchServe keeps this one at times only, so nothing describes it later.
            register("memory_error_load"),
            register("import_error"),
            register("two_classes"),
            manage("GET", "/models/two_classes"),
        ),
    ),
    Scenario(
        "sleeps",
        (
            # Its time limit is short, and a machine that stands still exceeds it.
            predict("sleeps", b"0.1", until=200),
            predict("sleeps", b"60"),
            predict("sleeps", b"0", until=200),
            predict("client_timeout", b"1", until=200, unanswered_s=3, differs="client-timeout"),
        ),
        ("sleeps", "client_timeout"),
    ),
    Scenario(
        "crash",
        (
            predict("crash", b"exit"),
            predict("crash", b"fine", until=200, look="status"),
            predict("crash", b"kill", look="class"),
            predict("crash", b"fine", until=200, look="status"),
            Ask("GET", "/ping"),
        ),
        ("crash",),
    ),
)

MANAGEMENT: Final = (
    Scenario(
        "scaling",
        (
            manage("PUT", "/models/echo?min_worker=2&synchronous=true"),
            manage("GET", "/models/echo"),
            manage("PUT", "/models/echo/1.0?min_worker=1&synchronous=true"),
            manage("GET", "/models/echo"),
            manage("PUT", "/models/echo?min_worker=1&max_worker=2"),
            manage("PUT", "/models/echo?min_worker=3&max_worker=2"),
            manage("PUT", "/models/echo?min_worker=-1", look="status"),
            manage("PUT", "/models/echo?min_worker=many&synchronous=true"),
            manage("PUT", "/models/echo/9.9?min_worker=1"),
            manage("PUT", "/models/echo?min_worker=0&synchronous=true"),
            manage("GET", "/models/echo"),
            predict("echo", b"x"),
            manage("GET", "/models/echo?customized=true"),
            manage("PUT", "/models/echo?min_worker=1"),
            predict("echo", b"x", until=200),
            manage("PUT", "/models/echo?min_worker=1&number_gpu=1&timeout=5&synchronous=true"),
            manage("PUT", "/models/echo?synchronous=true"),
            manage("GET", "/models/echo"),
        ),
        ("echo",),
    ),
    Scenario(
        "customized",
        (
            manage("GET", "/models/customized?customized=true"),
            manage("GET", "/models/customized/1.0?customized=true"),
            manage("GET", "/models/customized?customized=false"),
            manage("GET", "/models/echo?customized=true"),
            predict("customized", b"x"),
        ),
        ("customized", "echo"),
    ),
)

#: They list the models, and register what other scenarios have too.
ALONE: Final = (
    Scenario(
        "paths_of_management",
        (
            *(
                manage(method, path)
                for method, path in (
                    ("GET", "/"),
                    ("GET", "/nothing"),
                    ("GET", "/models"),
                    ("GET", "/models/"),
                    ("GET", "/models?limit=1"),
                    ("GET", "/models?limit=0"),
                    ("GET", "/models?limit=-1&next_page_token=-5"),
                    ("GET", "/models?limit=many&next_page_token=x"),
                    ("GET", "/models?next_page_token=1"),
                    ("GET", "/models?next_page_token=100"),
                    ("GET", "/models/noop"),
                    ("GET", "/models/noop/"),
                    ("GET", "/models/noop/1.11"),
                    ("GET", "/models/noop/all"),
                    ("GET", "/models/noop/9.9"),
                    ("GET", "/models/noop/1.11/more"),
                    ("GET", "/models/unknown"),
                    ("GET", "/models/noop?customized=true"),
                    ("GET", "/models/noop/1.11?customized=true"),
                    ("POST", "/models/noop"),
                    ("PATCH", "/models/noop"),
                    ("PUT", "/models"),
                    ("DELETE", "/models"),
                    ("DELETE", "/models/unknown"),
                    ("DELETE", "/models/noop/9.9"),
                    ("PUT", "/models/unknown"),
                    ("PUT", "/models/unknown/set-default"),
                    ("PUT", "/models/noop/9.9/set-default"),
                    ("PUT", "/models/noop/set-default"),
                    ("GET", "/v1/models/noop"),
                    ("GET", "/v1/models/unknown"),
                    ("GET", "/ping"),
                    ("POST", "/predictions/noop"),
                    ("GET", "/token?type=inference"),
                    ("GET", "/workflows"),
                    ("POST", "/workflows?url=x.war"),
                )
            ),
        ),
    ),
    Scenario(
        "versions",
        (
            register("noop", url="noop_v2.mar"),
            manage("GET", "/models"),
            manage("GET", "/models/noop/all"),
            manage("GET", "/models/noop/1.2.1"),
            predict("noop"),
            predict("noop/1.2.1"),
            manage("DELETE", "/models/noop/1.11"),
            manage("PUT", "/models/noop/1.2.1/set-default"),
            predict("noop"),
            manage("GET", "/models/noop"),
            manage("GET", "/models"),
            manage("PUT", "/models/noop/1.11/set-default"),
            manage("DELETE", "/models/noop/1.2.1"),
            predict("noop/1.2.1"),
            predict("noop"),
        ),
    ),
    Scenario(
        "register",
        (
            manage("POST", "/models"),
            manage("POST", "/models?url="),
            manage("POST", "/models?url=missing.mar"),
            manage("POST", "/models?url=../noop.mar"),
            manage("POST", "/models?url=/nowhere/noop.mar"),
            manage("POST", "/models?url=ftp://127.0.0.1/noop.mar"),
            manage("POST", "/models?url=http://127.0.0.1:9/noop_http.mar"),
            manage("POST", "/models?url=http://127.0.0.1:9/noop.mar"),
            manage("POST", "/models?url=file:///nowhere/noop_file.mar"),
            manage("POST", "/models?url=noop.mar"),
            manage("POST", "/models?url=echo.mar&runtime=java"),
            manage("POST", "/models?url=echo.mar"),
            predict("echo", b"x"),
            manage("GET", "/models/echo"),
            manage("DELETE", "/models/echo"),
            manage(
                "POST",
                "/models?url=echo.mar&batch_size=many&max_batch_delay=x&initial_workers=none",
            ),
            manage("GET", "/models/echo"),
            manage("DELETE", "/models/echo/1.0"),
            manage("POST", "/models?url=echo.mar&initial_workers=1&synchronous=false"),
            predict("echo", b"x", until=200),
            manage("DELETE", "/models/echo"),
            manage(
                "POST",
                "/models?url=echo.mar&model_name=renamed&batch_size=7&max_batch_delay=8&response_timeout=911&startup_timeout=912&initial_workers=1&unknown=1",
            ),
            manage("GET", "/models/renamed"),
            predict("renamed", b"x"),
            manage("DELETE", "/models/renamed"),
            manage(
                "POST",
                "/models",
                body=b'{"url": "echo.mar", "initial_workers": "1", "batch_size": 2}',
                headers=JSON,
            ),
            predict("echo", b"x"),
            manage("DELETE", "/models/echo"),
            manage(
                "POST", "/models", body=b"{'url': 'echo.mar', 'initial_workers': 0}", headers=JSON
            ),
            manage("DELETE", "/models/echo"),
            manage("POST", "/models", body=b"{}", headers=JSON),
            manage("POST", "/models", body=b"{", headers=JSON, differs="broken-json"),
            manage("POST", "/models", body=b"", headers=JSON, differs="broken-json"),
            manage("GET", "/models"),
            manage("POST", "/models?url=echo.mar&model_name=a%20b", differs="model-names"),
            manage("POST", "/models?url=echo.mar&batch_size=99999999999", differs="large-number"),
        ),
    ),
    Scenario(
        "numbers_of_zero_or_less",
        (
            *(
                ask
                for number in (0, -2)
                for name in ("batch_size", "max_batch_delay", "response_timeout")
                for ask in (
                    manage("POST", f"/models?url=echo.mar&initial_workers=1&{name}={number}"),
                    manage("GET", "/models/echo"),
                    predict("echo", b"x"),
                    manage("DELETE", "/models/echo"),
                )
            ),
            # TorchServe keeps a model of which no worker has started at times only.
            *(
                ask
                for number in (0, -5)
                for ask in (
                    register("echo", startup_timeout=number, model_name=f"late{number}"),
                    register(
                        "echo", startup_timeout=number, model_name=f"off{number}", initial_workers=0
                    ),
                    manage("GET", f"/models/off{number}"),
                )
            ),
            # These count as not given.
            register(
                "echo",
                batch_size=-1,
                max_batch_delay=-100,
                response_timeout=-1,
                startup_timeout=-1,
                initial_workers=-1,
            ),
            manage("GET", "/models/echo"),
            manage("DELETE", "/models/echo"),
            register("zeros"),
            manage("GET", "/models/zeros", differs="default-timeouts"),
            predict("zeros", b"x"),
            register("no_least", initial_workers=3),
            manage("GET", "/models/no_least"),
        ),
    ),
    Scenario(
        "workers_that_start",
        (
            register("echo", initial_workers=2, synchronous="false"),
            manage("GET", "/models/echo"),
            manage("PUT", "/models/echo?min_worker=2&synchronous=true", until=200, look="status"),
            manage("PUT", "/models/echo?min_worker=3"),
            manage("GET", "/models/echo"),
            manage("PUT", "/models/echo?min_worker=3&synchronous=true", until=200, look="status"),
            manage("PUT", "/models/echo?min_worker=1"),
            manage("GET", "/models/echo"),
            manage("PUT", "/models/echo?min_worker=0"),
            manage("GET", "/models/echo"),
            manage("DELETE", "/models/echo"),
            register("import_error", initial_workers=2, synchronous="false"),
            manage("GET", "/models/import_error"),
            manage("DELETE", "/models/import_error"),
            register("echo", url="a/folder/echo.mar", initial_workers=0),
            manage("GET", "/models/echo"),
        ),
    ),
    Scenario(
        "broken_archives",
        (
            *(
                manage("POST", f"/models?url={name}&initial_workers=0{more}")
                for name, more in (
                    ("not_a_zip.mar", ""),
                    ("not_a_zip.mar", "&model_name=not_a_zip&handler=service"),
                    ("cut.mar", ""),
                    ("slip.mar", ""),
                    ("bad_manifest.mar", ""),
                    ("bad.tar.gz", ""),
                    ("nameless.mar", ""),
                )
            ),
            manage("GET", "/models"),
            manage("DELETE", "/models/not_a_zip"),
            manage("POST", "/models?url=handlerless.mar&initial_workers=0", differs="no-handler"),
        ),
    ),
    Scenario(
        "batching",
        (
            register("batch_sizes", batch_size=4, max_batch_delay=1000),
            predict("batch_sizes", b"x"),
            predict("batch_sizes", b"x", times=4, look="status"),
            manage("DELETE", "/models/batch_sizes"),
        ),
    ),
    Scenario(
        "descriptions",
        (
            Ask("OPTIONS", "/", look="described"),
            Ask("GET", "/api-description", look="described"),
            # TorchServe describes /prediction/noop, which it does not have.
            Ask("OPTIONS", "/predictions/noop", look="status"),
            Ask("OPTIONS", "/predictions/unknown"),
            Ask("OPTIONS", "/nothing"),
            manage("OPTIONS", "/", look="described"),
            manage("GET", "/api-description", look="described"),
            manage("OPTIONS", "/models/noop", look="described"),
            Ask("OPTIONS", "/", port="metrics", look="described"),
            Ask("GET", "/api-description", port="metrics", look="described"),
        ),
    ),
    Scenario(
        "metrics",
        (
            # Some of its families come with time.
            Ask("GET", "/metrics", port="metrics", look="text", settles=True),
            Ask("POST", "/metrics/deeper", port="metrics", look="text", settles=True),
            Ask("GET", "/metrics?name[]=ts_inference_requests_total", port="metrics", look="text"),
            Ask("GET", "/metrics?name[]=nothing", port="metrics", look="text"),
            Ask("GET", "/nothing", port="metrics"),
            Ask("GET", "/", port="metrics", differs="root-of-metrics"),
        ),
    ),
)
