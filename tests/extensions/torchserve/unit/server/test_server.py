"""What becomes of TorchServe's configuration: settings, GPUs and certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.torchserve.config.launch import Flags, Launch, merge
from extensions.torchserve.server import server
from extensions.torchserve.server.server import gpus_of, variables_of
from headrace.config.settings import load_settings
from headrace.errors import ConfigError


def launched(folder: Path, *lines: str) -> Launch:
    (folder / "config.properties").write_text("\n".join(["model_store=store", *lines]))
    return merge(Flags(), {}, folder)


def test_the_settings_of_the_components(tmp_path: Path) -> None:
    launch = launched(
        tmp_path,
        "inference_address=http://0.0.0.0:9000",
        "max_request_size=1234",
        "default_response_timeout=7",
        "enable_model_api=true",
        "install_py_dep_per_model=true",
        "cors_allowed_origin=https://example.com",
    )
    environ = {"HEADRACE_STATE_DIR": str(tmp_path / "state"), "HEADRACE_RESULT_TTL_S": "60"}
    settings = load_settings(None, {**environ, **variables_of(launch, environ)}, {})
    assert (settings.host, settings.port) == ("0.0.0.0", 9000)
    assert (settings.body_limit_bytes, settings.timeout_s, settings.result_ttl_s) == (1234, 7, 60)
    assert settings.model_api
    assert settings.install_requirements
    assert settings.cors_origins == ("https://example.com",)
    assert settings.model_store == tmp_path / "store"
    assert settings.of("torchserve", Path) == tmp_path / "state/torchserve.properties"


def test_values_beyond_our_limits_are_the_limits(tmp_path: Path) -> None:
    launch = launched(
        tmp_path,
        "max_request_size=2147483647",
        "default_response_timeout=2147483647",
        "cors_allowed_origin=*",
    )
    settings = load_settings(None, variables_of(launch, {}), {})
    assert (settings.body_limit_bytes, settings.timeout_s) == (1024**3, 86_400)
    assert settings.cors_origins == ()


@pytest.mark.parametrize(
    ("number", "shown"),
    [("", None), ("0", ""), ("1", "GPU-a"), ("2", None), ("9", None)],
)
def test_the_number_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, shown: str | None
) -> None:
    monkeypatch.setattr(server, "list_gpus", lambda: ["GPU-a", "GPU-b"])
    launch = launched(tmp_path, f"number_of_gpu={number}")
    assert gpus_of(launch, {}).get("CUDA_VISIBLE_DEVICES") == shown


def test_gpus_that_the_environment_hides_stay_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "list_gpus", lambda: ["GPU-a", "GPU-b"])
    launch = launched(tmp_path, "number_of_gpu=1")
    assert gpus_of(launch, {"CUDA_VISIBLE_DEVICES": "1,0"}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert gpus_of(launch, {"CUDA_VISIBLE_DEVICES": "1"}) == {}


def test_a_number_of_gpus_that_is_none(tmp_path: Path) -> None:
    launch = launched(tmp_path, "number_of_gpu=-1")
    with pytest.raises(ConfigError, match="number_of_gpu: expected a number, got '-1'"):
        gpus_of(launch, {})


def test_https_needs_its_files(tmp_path: Path) -> None:
    launch = launched(tmp_path, "inference_address=https://127.0.0.1:1", "certificate_file=a.pem")
    with pytest.raises(ConfigError, match=r"needs certificate_file and private_key_file$"):
        variables_of(launch, {})
    launch = launched(
        tmp_path,
        "inference_address=https://127.0.0.1:1",
        "certificate_file=/a.pem",
        "private_key_file=/k.pem",
    )
    found = variables_of(launch, {})
    assert found["HEADRACE_TLS_CERT_FILE"] == "/a.pem"
    assert found["HEADRACE_TLS_KEY_FILE"] == "/k.pem"
