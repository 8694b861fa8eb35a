"""Where Flower may listen, and with which password."""

from __future__ import annotations

import pytest

from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.server.components import check_flower, flower_child


@pytest.mark.parametrize(
    "environ",
    [{}, {"FLOWER_AUTH_PROVIDER": "flower.views.auth.GoogleAuth2LoginHandler"},
     {"FLOWER_AUTH": ".*@example.com"}, {"FLOWER_BASIC_AUTH": ""}],
)  # fmt: skip
def test_without_a_way_to_know_its_users_it_stays_on_this_machine(environ: dict[str, str]) -> None:
    check_flower("127.0.0.1", environ, change="x")
    with pytest.raises(ConfigError, match="must have a password"):
        check_flower("0.0.0.0", environ, change="x")


@pytest.mark.parametrize(
    "environ",
    [{"FLOWER_BASIC_AUTH": "me:secret"},
     {"FLOWER_AUTH_PROVIDER": "a.Handler", "FLOWER_AUTH": ".*@example.com"}],
)  # fmt: skip
def test_with_one_it_may_listen_anywhere(environ: dict[str, str]) -> None:
    check_flower("0.0.0.0", environ, change="x")


def test_the_service_of_kubernetes_that_is_named_flower_sets_no_port() -> None:
    links = {"FLOWER_PORT": "tcp://10.0.0.1:5555", "FLOWER_SERVICE_HOST": "10.0.0.1"}
    environ = {"FLOWER_MAX_TASKS": "7", "FLOWER_BASIC_AUTH": "", **links}
    given = flower_child(Settings(), environ).environment()
    assert given["FLOWER_MAX_TASKS"] == "7"
    assert not {*links, "FLOWER_BASIC_AUTH"} & set(given)
