"""API keys as text, and the table of operations compared with the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from api.auth.authenticator import Open
from api.extension import operations
from headrace.access.api_key import ApiKey as Key
from headrace.access.api_key import (
    Caller,
    Scope,
    digest_of,
    fields_of,
    key_from,
    new_key,
    read_key,
    written,
)
from headrace.config.settings import Settings, is_loopback, load_settings
from headrace.errors import ConfigError


def test_a_key_is_read_as_it_is_written_and_nothing_else_is_one() -> None:
    made = new_key()
    text = written(made)
    assert read_key(text) == made
    assert len(made.secret) == 43, "256 bits"
    assert new_key() != made
    for bad in ("", text[:-1], text + "x", text.upper(), f" {text}", text.replace("hr_", "sk_")):
        assert read_key(bad) is None


def key_of(secret: str, **more: Any) -> Key:
    return Key("0" * 12, "n", digest_of(secret), frozenset({Scope.READ}), **more)


def test_a_secret_is_good_alone_and_the_one_before_for_a_while() -> None:
    key = key_of("new", old_digest=digest_of("old"), old_until_s=10.0)
    assert key.is_secret("new", 99.0)
    assert key.is_secret("old", 9.0)
    assert not key.is_secret("old", 10.0)
    assert not key.is_secret("", 0.0)
    assert not key_of("new").is_secret("", 0.0)


def test_a_key_comes_back_out_of_redis_or_not_at_all() -> None:
    key = key_of(
        "s", rate=2.5, in_flight=7, created_s=1.5, expires_s=2.5, acts=True, tokens_per_minute=9
    )
    stored = {name.encode(): value.encode() for name, value in fields_of(key).items()}
    assert key_from(key.id, stored) == key
    for name in stored:
        broken = {**stored, name: b"\xff,"}
        assert name in (b"name", b"acts") or key_from(key.id, broken) is None, name
        without = key_from(key.id, {k: v for k, v in stored.items() if k != name})
        assert without is None


def test_which_jobs_a_caller_may_see() -> None:
    plain, manager, unowned = Caller("a", False), Caller("a", True), Caller("", False)
    assert [plain.may_see(owner) for owner in ("a", "b", "")] == [True, False, False]
    assert all(manager.may_see(owner) for owner in ("a", "b", ""))
    assert [unowned.may_see(owner) for owner in ("a", "")] == [False, True]
    assert (plain.only, manager.only, unowned.only) == ("a", None, "-")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False),
        ("127.0.0.1.example.org", False), ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_keys_are_asked_for_where_others_can_reach_the_api(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert Settings(host=host).asks_for_keys is not loopback
    assert Settings(host="0.0.0.0", published_at=host).asks_for_keys is not loopback
    assert Settings(host=host, auth="on").asks_for_keys
    assert not Settings(host=host, auth="off").asks_for_keys


def test_on_and_off_of_yaml_are_words(tmp_path: Any) -> None:
    for word in ("on", "off", '"on"', "auto"):
        file = tmp_path / "headrace.yaml"
        file.write_text(f"auth: {word}\n")
        assert load_settings(file, {}, {}).auth == word.strip('"')


def test_the_documents_table_is_the_one_that_is_used() -> None:
    text = (Path(__file__).parents[4] / "docs/security.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z]+)` `([^`]+)` \| `?(\w+)", text, re.MULTILINE)
    shown = {
        Open.ALWAYS: "open", Open.METRICS: "any", Open.ANY_KEY: "any", Open.DOCS: "open",
    }  # fmt: skip
    wanted = [
        (
            one.method,
            one.path.replace(":path", ""),
            shown[one.needs] if isinstance(one.needs, Open) else str(one.needs),
        )
        for one in operations()
    ]
    assert sorted(rows) == sorted(wanted)


@pytest.mark.parametrize("origin", ["*", "pages.example", "https://a.example/path", "null", ""])
def test_an_origin_is_named_as_browsers_say_it(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        load_settings(None, {}, {"cors_origins": [origin]})
    named = {"HEADRACE_CORS_ORIGINS": "https://a.example, http://[::1]:3000"}
    assert load_settings(None, named, {}).cors_origins == ("https://a.example", "http://[::1]:3000")
