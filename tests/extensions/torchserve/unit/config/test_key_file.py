"""The file of keys: its form, renewal, keys that do not expire."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from extensions.torchserve.config.key_file import (
    STATIC_KEYS,
    Key,
    make_keys,
    present_keys,
    read_keys,
    remove_keys,
    renew,
    static_keys,
)
from extensions.torchserve.extension import EXTENSION
from headrace.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key_file.json"


def test_a_new_file_has_three_keys_that_only_its_owner_can_read(path: Path) -> None:
    keys = make_keys(path, 60)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = json.loads(path.read_text())
    assert list(written) == ["management", "inference", "API"]
    assert list(written["management"]) == ["key", "expiration time"]
    assert list(written["API"]) == ["key"]
    assert all(len(one["key"]) == 8 for one in written.values())
    assert len({one["key"] for one in written.values()}) == 3
    left = datetime.fromisoformat(written["inference"]["expiration time"]) - datetime.now(UTC)
    assert timedelta(minutes=58) < left <= timedelta(minutes=60)
    assert keys == read_keys(path)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_server_that_starts_replaces_the_keys_of_an_earlier_one(path: Path) -> None:
    path.write_text("{ nonsense")
    first = make_keys(path, 60)
    second = make_keys(path, 60)
    assert first.management != second.management
    assert first.API != second.API


def test_keys_that_an_operator_has_written_stay(path: Path) -> None:
    path.write_text('{"inference": {"key": "mine"}, "API": {"key": "also mine"}}')
    keys = make_keys(path, 60)

    assert (keys.inference, keys.API) == (Key("mine"), Key("also mine"))
    assert keys.management is not None
    assert keys.management.expires is not None
    remove_keys(path)
    assert path.exists()


def test_keys_of_the_environment_do_not_expire(path: Path) -> None:
    assert set(EXTENSION.variables) == STATIC_KEYS.keys()
    environ = {"HEADRACE_TORCHSERVE_INFERENCE_KEY": "fixed", "HEADRACE_TORCHSERVE_API_KEY": ""}
    assert static_keys(environ) == {"inference": "fixed"}
    assert make_keys(path, 60, static_keys(environ)).inference == Key("fixed")
    assert renew(path, "inference", 60) == Key("fixed")


def test_a_renewed_key_replaces_one_only_and_readers_follow(path: Path) -> None:
    before = make_keys(path, 60)
    assert present_keys(path) == before
    key = renew(path, "management", 60)
    after = present_keys(path)
    assert after.management == key != before.management
    assert (after.inference, after.API) == (before.inference, before.API)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_removed_with_its_server(path: Path) -> None:
    make_keys(path, 60)
    remove_keys(path)
    assert not path.exists()
    remove_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        present_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        renew(path, "inference", 60)


@pytest.mark.parametrize(
    ("expires", "expired"),
    [
        (None, False),
        ("2099-01-01T00:00:00.123456789Z", False),
        ("2020-01-01T00:00:00Z", True),
        ("soon", True),
        ("2099-01-01T00:00:00", True),
    ],
)
def test_a_key_expires_at_its_time(expires: str | None, expired: bool) -> None:
    assert Key("x", expires).expired(datetime.now(UTC)) is expired


@pytest.mark.parametrize("text", ["[]", '{"API": 1}', '{"API": {"key": ""}}', "\xff"])
def test_a_file_that_is_none_is_refused(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not a file of keys"):
        read_keys(path)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        make_keys(tmp_path / "none" / "key_file.json", 60)
