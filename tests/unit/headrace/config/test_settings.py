from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.config.environment import server_root
from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError

SECRET = "hunter2"


def load(
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    file: Path | None = None,
) -> Settings:
    return load_settings(file, environ or {}, overrides or {})


def problem(
    environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(environ, overrides)
    return caught.value.message


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "server.yaml"
    path.write_text("port: 1001\nhost: file\nflower_port: 1002\nmodels_file: mine/models.yaml\n")
    return path


def test_defaults_need_no_environment() -> None:
    settings = load()
    assert settings.redis_url is None
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.body_limit_bytes == 32 * 1024 * 1024


def test_command_line_beats_environment_beats_file_beats_default(settings_file: Path) -> None:
    environ = {"HEADRACE_PORT": "2001", "HEADRACE_HOST": "environment"}
    settings = load(environ, {"port": 3001, "host": None}, settings_file)
    assert settings.port == 3001
    assert settings.host == "environment"
    assert settings.flower_port == 1002
    assert settings.flower_host == "127.0.0.1"


def test_the_settings_file_is_named_by_a_variable(settings_file: Path) -> None:
    assert load({"HEADRACE_CONFIG": str(settings_file)}).port == 1001


def test_a_path_in_the_settings_file_is_taken_from_its_folder(settings_file: Path) -> None:
    assert load(file=settings_file).models_file == settings_file.parent / "mine/models.yaml"


def test_a_path_in_the_environment_is_taken_as_it_is() -> None:
    assert load({"HEADRACE_MODELS_FILE": "mine/models.yaml"}).models_file == Path(
        "mine/models.yaml"
    )


def test_the_models_file_that_comes_with_headrace_serves_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().models_file == server_root() / "configs/models.yaml"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/models.yaml").touch()
    assert load().models_file == Path("configs/models.yaml")


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("HEADRACE_PORT", "9000", "port", 9000),
        ("HEADRACE_LEASE_TTL_S", "2.5", "lease_ttl_s", 2.5),
        ("HEADRACE_LOG_LEVEL", "WARNING", "log_level", "warning"),
        ("HEADRACE_STATE_DIR", "/var/lib/headrace", "state_dir", Path("/var/lib/headrace")),
        ("HEADRACE_PORT", "", "port", 8080),
    ],
)
def test_variables_are_read_as_their_type(
    variable: str, text: str, key: str, value: object
) -> None:
    assert getattr(load({variable: text}), key) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("PORT", "eighty", "expected int, got 'eighty'"),
        ("PORT", "70000", "expected int <= 65535, got '70000'"),
        ("MAX_RETRIES", "1.5", "expected int, got '1.5'"),
        ("TIMEOUT_S", "nan", "expected float > 0.0, got 'nan'"),
        ("TIMEOUT_S", "inf", "expected float <= 86400.0, got 'inf'"),
        ("PROT", "1", "unknown variable; did you mean HEADRACE_PORT?"),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, expected: str) -> None:
    assert problem({f"HEADRACE_{name}": text}) == f"environment: HEADRACE_{name}: {expected}"


@pytest.mark.parametrize("service", ["HEADRACE", "HEADRACE_FLOWER", "HEADRACE_REDIS", "HEADRACE_2"])
def test_what_kubernetes_sets_for_services_is_ignored(service: str) -> None:
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_HTTP_API": "8080",
        "PORT": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP": "tcp://[fd00::1]:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.1",
        "PORT_53_UDP": "udp://10.0.0.1:53",
    }
    assert load({f"{service}_{name}": value for name, value in links.items()}) == load()


def test_a_port_of_the_operator_counts_beside_those_of_kubernetes() -> None:
    environ = {"HEADRACE_PORT": "9000", "HEADRACE_FLOWER_PORT": "tcp://10.0.0.1:5555"}
    assert load(environ) == load({"HEADRACE_PORT": "9000"})


@pytest.mark.parametrize("name", ["HEADRACE_SERVICE", "HEADRACE_PORT_NAME", "HEADRACE_HOST_PORT"])
def test_a_variable_that_only_resembles_those_of_kubernetes_is_a_mistake(name: str) -> None:
    assert "unknown variable" in problem({name: "8080"})


def test_an_unknown_log_level_is_refused() -> None:
    assert "HEADRACE_LOG_LEVEL: expected debug, error, info or warning, got 'loud'" in problem(
        {"HEADRACE_LOG_LEVEL": "loud"}
    )


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_host_that_no_connection_can_have_is_refused(host: str) -> None:
    text = problem({"HEADRACE_HOST": host}, {"flower_host": host})
    for name in ("host", "flower_host"):
        assert f"{name}: {host!r} is no name of a host" in text


def test_every_mistake_is_named_at_once() -> None:
    text = problem({"HEADRACE_PORT": "x", "HEADRACE_NOPE": "1"}, {"flower_port": 0, "hots": "a"})
    assert [line.split(": ")[1] for line in text.splitlines()] == [
        "HEADRACE_NOPE", "HEADRACE_PORT", "flower_port", "hots",
    ]  # fmt: skip


def test_variables_that_processes_hand_down_are_no_mistake() -> None:
    names = ("INCARNATION", "NODE", "URL", "MODEL_PARENT")
    assert load({f"HEADRACE_{name}": "x" for name in names}) == load()


def test_foreign_variables_are_let_alone() -> None:
    assert load({"PORT": "1", "HOST": "x", "headrace_port": "2"}) == load()


def test_file_mistakes_carry_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("port: 1\n\nhst: a\nlease_ttl_s: soon\nredis_url: 7\n")
    with pytest.raises(ConfigError) as caught:
        load(file=path)
    assert caught.value.message.splitlines() == [
        f"{path}:3: hst: unknown key; did you mean host?",
        f"{path}:4: lease_ttl_s: expected float, got 'soon'",
        f"{path}:5: redis_url: expected str, got int",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "rediss://:pw@host:6380/1",
        "unix:///run/redis.sock",
        "sentinel://:pw@one:26379,two:26379/0?master=main",
    ],
)
def test_redis_urls_of_each_kind_pass(url: str) -> None:
    assert load({"HEADRACE_REDIS_URL": url}).redis_url == url


def test_redis_url_is_taken_from_the_platforms_variable_last(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("redis_url: redis://file\n")
    both = {"REDIS_URL": "redis://platform", "HEADRACE_REDIS_URL": "redis://ours"}
    assert load(both).redis_url == "redis://ours"
    assert load({"REDIS_URL": "redis://platform"}, file=path).redis_url == "redis://platform"
    assert load({"REDIS_URL": ""}, file=path).redis_url == "redis://file"
    assert load(both, {"redis_url": "redis://line"}).redis_url == "redis://line"


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@host",
        f"redsi://:{SECRET}@host",
        f":{SECRET}@host:6379",
        f"sentinel://:{SECRET}@host:26379/0",
        f"sentinel://:{SECRET}@host:port/0?master=m",
        SECRET,
    ],
)
@pytest.mark.parametrize("variable", ["HEADRACE_REDIS_URL", "REDIS_URL"])
def test_a_bad_redis_url_is_named_without_its_password(variable: str, url: str) -> None:
    text = problem({variable: url})
    assert variable in text
    assert SECRET not in text


def test_a_bad_redis_url_in_the_file_does_not_show_its_password(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(f"redis_url: http://:{SECRET}@host\n")
    with pytest.raises(ConfigError) as caught:
        load(file=path)
    assert f"{path}:1: redis_url: expected a URL" in caught.value.message
    assert SECRET not in caught.value.message


def test_repr_hides_the_password() -> None:
    settings = load({"REDIS_URL": f"redis://:{SECRET}@host:6379/0"})
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings.__rich_repr__())
    assert "host:6379" in repr(settings)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load().port = 1  # type: ignore[misc]
