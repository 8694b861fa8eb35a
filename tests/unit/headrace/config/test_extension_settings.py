"""The value of an extension in the settings: its file, its variables, and what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from headrace.config.extensions import Extension, found
from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError
from tests.harness.extensions import installed
from tests.harness.servers.up import clean_environment


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 9000
    names: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.port == 13:
            raise ValueError("port 13 is of another service")


def fails() -> object:
    raise ImportError("no module of its own")


@pytest.fixture(autouse=True)
def _extensions() -> Iterator[None]:
    with installed(
        Extension(name="grpc", summary="", settings=lambda: Ports),
        Extension(name="serving", summary="", settings=lambda: Path),
        Extension(name="partly", summary="", settings=fails),
        Extension(name="none", summary="", variables=("HEADRACE_NONE_KEY",)),
        missing="absent",
    ):
        yield


def load(text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    file = Path("server.yaml")
    file.write_text(text)
    return load_settings(file if text else None, environ or {}, {})


def problems(text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, environ)
    return caught.value.message.splitlines()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_no_value_is_none_and_a_struct_with_its_defaults() -> None:
    assert load().of("grpc", Ports) == Ports()
    assert load().of("serving", Path) is None


def test_a_value_is_in_the_file_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    settings = load("port: 1\nserving: a/b\ngrpc:\n  port: 2\n  folders: [c, /d]\n")
    assert settings.port == 1
    assert settings.of("serving", Path) == tmp_path / "a/b"
    assert settings.of("grpc", Ports) == Ports(2, (), (tmp_path / "c", Path("/d")))


def test_variables_win_over_the_file_field_by_field() -> None:
    text = "grpc: {port: 2, names: [x]}\nserving: /a\n"
    environ = {
        "HEADRACE_GRPC_PORT": "3",
        "HEADRACE_GRPC_FOLDERS": "c, d",
        "HEADRACE_SERVING": "b",
        "HEADRACE_GRPC_NAMES": "",
    }
    settings = load(text, environ)
    assert settings.of("grpc", Ports) == Ports(3, ("x",), (Path("c"), Path("d")))
    assert settings.of("serving", Path) == Path("b")


def test_what_does_not_fit_is_named_with_file_and_line() -> None:
    assert problems("port: 0\ngrpc:\n  prt: 2\n  port: x\nserving: 7\ngrcp: 1\nnone: 1\n") == [
        "server.yaml:1: port: expected int >= 1, got 0",
        "server.yaml:3: grpc.prt: unknown key; did you mean port?",
        "server.yaml:4: grpc.port: expected int, got 'x'",
        'server.yaml:5: serving: expected path, got int; write it in quotes: "7"',
        "server.yaml:6: grcp: unknown key; did you mean grpc?",
        "server.yaml:7: none: unknown key",
    ]
    assert problems("grpc: 5\n") == [
        "server.yaml:1: grpc: expected a mapping (`key: value`), got 5"
    ]
    assert problems("grpc: {port: 13}\n") == ["grpc: port 13 is of another service"]


def test_what_does_not_fit_is_named_with_its_variable() -> None:
    environ = {"HEADRACE_GRPC_PORT": "0", "HEADRACE_GRPC_PRT": "1", "HEADRACE_SERVING_X": "1"}
    assert problems(environ=environ) == [
        "environment: HEADRACE_GRPC_PORT: expected int >= 1, got '0'",
        "environment: HEADRACE_GRPC_PRT: unknown variable; did you mean HEADRACE_GRPC_PORT?",
        "environment: HEADRACE_SERVING_X: unknown variable; did you mean HEADRACE_SERVING?",
    ]


def test_a_variable_that_an_extension_reads_itself_is_no_setting() -> None:
    load(environ={"HEADRACE_NONE_KEY": "1"})
    assert problems(environ={"HEADRACE_NONE_KEI": "1"}) == [
        "environment: HEADRACE_NONE_KEI: unknown variable; did you mean HEADRACE_NONE_KEY?"
    ]


def test_the_values_of_an_extension_that_cannot_be_used_stop_nothing() -> None:
    text = "absent: {a: 1}\npartly: 2\nport: 3\n"
    environ = {"HEADRACE_ABSENT_A": "1", "HEADRACE_PARTLY": "2"}
    settings = load(text, environ)
    assert settings.port == 3
    assert settings.extensions == {}
    assert set(found().problems) == {"absent", "partly"}


def test_the_values_of_extensions_are_not_shown() -> None:
    assert "hunter2" not in repr(load("grpc: {names: [hunter2]}\n"))


def test_settings_of_the_core_look_for_no_extension() -> None:
    program = """
import sys
from headrace.config.extensions import found
from headrace.config.settings import load_settings
load_settings(None, {"HEADRACE_PORT": "1", "HEADRACE_URL": "x"}, {"host": "a"})
assert found.cache_info().misses == 0
load_settings(None, {"HEADRACE_TORCHSERVE": "x"}, {})
assert "extensions.torchserve.extension" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=clean_environment())
