"""The command line, the environment and config.properties, merged as TorchServe merges them."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.torchserve.config.launch import Flags, Launch, StartModel, merge
from headrace.errors import ConfigError


def launched(folder: Path, text: str = "", flags: Flags = Flags(), **environ: str) -> Launch:  # noqa: B008 - immutable
    if text:
        (folder / "config.properties").write_text(text)
    return merge(flags, environ, folder)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    found = launched(tmp_path)
    assert (found.file, found.model_store, found.notices) == (None, None, [])
    assert found.config.log_location == tmp_path / "logs"
    assert found.config.metrics_location == tmp_path / "logs"
    assert found.config.snapshot_folder == tmp_path / "logs/config"
    assert found.config.key_file == tmp_path / "key_file.json"
    assert [one.port for one in found.addresses] == [8080, 8081, 8082]


def test_the_folders_of_the_log_files_are_set_apart(tmp_path: Path) -> None:
    found = launched(tmp_path, LOG_LOCATION="mine").config
    assert (found.log_location, found.metrics_location) == (tmp_path / "mine", tmp_path / "logs")
    found = launched(tmp_path, METRICS_LOCATION="mine").config
    assert (found.log_location, found.metrics_location) == (tmp_path / "logs", tmp_path / "mine")


def test_the_environment_wins_over_the_command_line_which_wins_over_the_file(
    tmp_path: Path,
) -> None:
    text = "load_models=a.mar\nmodel_store=file\njob_queue_size=3\nenable_model_api=false\n"
    flags = Flags(models=("b.mar", "c=d.mar"), model_store="flag", enable_model_api=True)
    found = launched(tmp_path, text, flags, TS_JOB_QUEUE_SIZE="9", TS_ENABLE_MODEL_API="false")
    assert found.config.load_models == "b.mar,c=d.mar"
    assert found.model_store == tmp_path / "flag"
    assert found.config.job_queue_size == 3
    assert found.config.enable_model_api
    found = launched(
        tmp_path,
        f"{text}enable_envvars_config=true\n",
        flags,
        TS_JOB_QUEUE_SIZE="9",
        TS_ENABLE_MODEL_API="false",
        TS_MODEL_STORE="variable",
        TS_ALLOWED_URLS="none",
        TS_KEY_FILE="x",
        TS_VMARGS="x",
        TS_METRICS_MODE="",
        TS_GRPC_INFERENCE_PORT="tcp://10.0.0.1:7070",
    )
    assert found.config.job_queue_size == 9
    assert not found.config.enable_model_api
    assert found.model_store == tmp_path / "variable"
    assert found.config.allowed_urls.startswith("file://")
    assert found.config.key_file == tmp_path / "key_file.json"


def test_allowed_urls_need_a_key_of_their_own(tmp_path: Path) -> None:
    text = "enable_envvars_config=true\nuse_env_allowed_urls=true\nallowed_urls=a\n"
    assert launched(tmp_path, text, TS_ALLOWED_URLS="b").config.allowed_urls == "b"


def test_variables_in_values(tmp_path: Path) -> None:
    found = launched(tmp_path, "model_store=$$STORE$$/x\nkeystore_pass=$$STORE$$", STORE="/srv")
    assert "keystore_pass" not in found.values
    assert found.model_store == Path("/srv/x")
    assert found.values["model_store"] == "/srv/x"


def test_open_inference_protocol_by_its_variable(tmp_path: Path) -> None:
    found = launched(tmp_path, TS_OPEN_INFERENCE_PROTOCOL="oip")
    assert found.config.ts_open_inference_protocol


def test_which_file_is_read(tmp_path: Path) -> None:
    for name in ("config.properties", "flag.properties", "variable.properties"):
        (tmp_path / name).write_text("")
    snapshots = tmp_path / "logs/config"
    assert launched(tmp_path).file == tmp_path / "config.properties"
    snapshots.mkdir(parents=True)
    (snapshots / "20250101000000001-startup.cfg").write_text("vmargs=a")
    (snapshots / "20250101000000000-shutdown.cfg").write_text("")
    (snapshots / "9-startup.cfg").write_text("")
    found = launched(tmp_path)
    assert (found.file, found.is_snapshot) == (snapshots / "20250101000000001-startup.cfg", True)
    assert found.notices == []
    assert launched(tmp_path, flags=Flags(no_snapshots=True)).file == tmp_path / "config.properties"
    assert not launched(tmp_path, flags=Flags(no_snapshots=True)).config.snapshot_folder
    flags = Flags(ts_config="flag.properties")
    assert launched(tmp_path, flags=flags).file == tmp_path / "flag.properties"
    found = launched(tmp_path, flags=flags, TS_CONFIG_FILE=str(tmp_path / "variable.properties"))
    assert found.file == tmp_path / "variable.properties"
    assert launched(tmp_path, LOG_LOCATION="elsewhere").file == tmp_path / "config.properties"


def test_the_models_of_the_start(tmp_path: Path) -> None:
    text = "load_models=a.mar, b=c.mar ,, d=https://x/y.mar?z=1, https://x/y.mar?z=1,e="
    found = launched(tmp_path, text)
    assert not found.loads_all
    assert found.named_models == [
        StartModel("", "a.mar"),
        StartModel("b", "c.mar"),
        StartModel("d", "https://x/y.mar?z=1"),
        StartModel("", "https://x/y.mar?z=1"),
    ]
    assert launched(tmp_path, "load_models=ALL").loads_all
    assert launched(tmp_path, "load_models=ALL").named_models == []
    assert launched(tmp_path, "job_queue_size=1").named_models == []


def test_addresses(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        "inference_address=https://[::]\nmanagement_address=unix:/tmp/m.sock\n"
        "metrics_address=https://[::]:443\n",
    )
    assert [one[1:] for one in found.addresses] == [
        ("https", "::", 443),
        ("unix", "/tmp/m.sock", 0),
    ]
    only = launched(tmp_path, "enable_metrics_api=false").addresses
    assert [one.key for one in only] == ["inference_address", "management_address"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("inference_address=8080", "inference_address: '8080' is not an address"),
        ("inference_address=http://a:b", "inference_address: 'http://a:b' is not an address"),
        ("inference_address=unix:", "inference_address: 'unix:' is not an address"),
        (
            "metrics_address=https://127.0.0.1:8080",
            "metrics_address: inference_address has the same port, but begins with http:",
        ),
        ("model_store=$$NO$$", "model_store: the environment variable NO is not set"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        launched(tmp_path, text)
    assert f"{tmp_path / 'config.properties'}: {problem}" in error.value.message


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--ts-config file not found: x$"):
        launched(tmp_path, flags=Flags(ts_config="x"))


def test_options_without_effect_say_what_replaces_them(tmp_path: Path) -> None:
    notices = merge(Flags(log_config="log4j2.xml", plugins_path="plugins"), {}, tmp_path).notices
    log, plugins = notices
    assert log.startswith("--log-config log4j2.xml: no effect")
    assert "HEADRACE_LOG_LEVEL" in log
    assert plugins.startswith("--plugins-path plugins: no effect")
    assert merge(Flags(), {}, tmp_path).notices == []


def test_the_workflow_store_is_a_path_and_a_key(tmp_path: Path) -> None:
    assert merge(Flags(), {}, tmp_path).workflow_store is None
    assert merge(Flags(workflow_store="wf"), {}, tmp_path).workflow_store == tmp_path / "wf"
    (tmp_path / "config.properties").write_text("workflow_store=own\n")
    launch = merge(Flags(), {}, tmp_path)
    assert launch.workflow_store == tmp_path / "own"
    assert launch.notices == []
