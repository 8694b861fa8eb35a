"""The traffic of a model: shares, stickiness, and what a change of weights moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace.config.model.traffic import Sticky, Traffic, read_traffic
from headrace.jobs.ids import new_id

USERS = [f"user-{n}".encode() for n in range(10_000)]


def chosen(**weights: float) -> list[str]:
    traffic = Traffic(weights={name.strip("v"): weight for name, weight in weights.items()})
    return [traffic.choose("words", user) for user in USERS]


def moves(before: list[str], after: list[str]) -> Counter[tuple[str, str]]:
    return Counter(pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])


def test_the_shares_are_as_the_weights() -> None:
    for weights in ({"v1": 90, "v2": 10}, {"v1": 0.9, "v2": 0.1}, {"v1": 5, "v2": 3, "v3": 2}):
        counts = Counter(chosen(**weights))
        for name, weight in weights.items():
            share = weight / sum(weights.values())
            assert counts[name.strip("v")] / len(USERS) == pytest.approx(share, abs=0.015)


def test_fresh_ids_get_the_share_of_a_canary() -> None:
    traffic = Traffic(weights={"1.0": 90, "2.0": 10})
    counts = Counter(traffic.choose("words", new_id().encode()) for _ in range(10_000))

    assert counts["2.0"] / 10_000 == pytest.approx(0.1, abs=0.02)


def test_a_larger_canary_takes_users_and_returns_none() -> None:
    before, after = chosen(v1=90, v2=10), chosen(v1=80, v2=20)

    assert set(moves(before, after)) == {("1", "2")}
    assert moves(before, after)["1", "2"] / len(USERS) == pytest.approx(0.1, abs=0.015)


def test_a_new_weight_moves_only_users_of_its_version() -> None:
    before, after = chosen(v1=50, v2=50), chosen(v1=50, v2=50, v3=20)
    assert {new for _, new in moves(before, after)} == {"3"}
    assert {old for old, _ in moves(after, chosen(v1=50, v2=50, v3=10))} == {"3"}


def test_the_order_and_the_scale_of_weights_do_not_count() -> None:
    assert chosen(v1=90, v2=10) == chosen(v2=10, v1=90) == chosen(v1=9, v2=1)


def test_a_weight_of_nothing_gets_no_job_and_one_version_gets_all() -> None:
    assert set(chosen(v1=1, v2=0)) == {"1"}
    assert set(chosen(v2=0.001)) == {"2"}


def test_the_canary_of_one_model_is_not_that_of_another() -> None:
    traffic = Traffic(weights={"1": 50, "2": 50})
    same = sum(traffic.choose("a", user) == traffic.choose("b", user) for user in USERS)

    assert same / len(USERS) == pytest.approx(0.5, abs=0.03)


def test_the_choice_stays_what_it_was_in_earlier_releases() -> None:
    """Else every user may see another version after an update."""
    traffic = Traffic(weights={"1.0": 50, "2.0": 50})
    found = "".join(traffic.choose("words", b"user-%d" % n)[0] for n in range(24))

    assert found == "212122111111121212121212"


def test_a_user_is_known_by_a_header_or_a_key_of_the_metadata() -> None:
    by_header = Traffic(weights={"1": 1}, sticky=Sticky(header="X-User"))
    by_metadata = Traffic(weights={"1": 1}, sticky=Sticky(metadata="user"))
    headers = {b"x-user": b"ann"}

    def header(name: bytes) -> bytes:
        return headers.get(name, b"")

    assert by_header.key("id", {"user": "bob"}, header) == b"ann"
    assert by_metadata.key("id", {"user": "bob"}, header) == b"bob"
    assert by_metadata.key("id", {"user": 7}, header) == b"7"
    assert by_metadata.key("id", {"user": {"b": 1, "a": 2}}, header) == b'{"a":2,"b":1}'
    headers.clear()
    for traffic, metadata in (
        (by_header, None),
        (by_metadata, None),
        (by_metadata, {"user": None}),
    ):
        assert traffic.key("id", metadata, header) == b"id"


def test_versions_that_are_not_registered_leave_their_share_to_the_others() -> None:
    traffic = Traffic(weights={"1.0": 90, "2.0": 10})

    assert traffic.among({"1.0": 0, "2.0": 0}) == traffic
    only = traffic.among({"2.0": 0})
    assert only is not None
    assert only.weights == {"2.0": 10}
    assert traffic.among({}) is None


def test_some_percent_of_the_jobs_are_copied_to_the_shadow_version() -> None:
    traffic = Traffic(shadow="2.0", shadow_percent=20)
    copied = [traffic.copies("words", user.decode()) for user in USERS]
    assert sum(copied) / len(USERS) == pytest.approx(0.2, abs=0.015)

    for percent, every in ((100.0, True), (0.0, False)):
        traffic = Traffic(shadow="2.0", shadow_percent=percent)
        assert {traffic.copies("words", user.decode()) for user in USERS} == {every}
    assert not Traffic(weights={"1.0": 1}).copies("words", "id")


def test_a_shadow_version_outlives_the_weights_unless_it_gets_all_jobs() -> None:
    traffic = Traffic(weights={"1.0": 1, "2.0": 1}, shadow="3.0", shadow_percent=5)

    assert traffic.versions == ["1.0", "2.0", "3.0"]
    assert traffic.without_weights("2.0") == Traffic(shadow="3.0", shadow_percent=5)
    assert traffic.without_weights("3.0") == Traffic()
    assert traffic.among({"1.0": 0, "2.0": 0}) == Traffic(
        weights={"1.0": 1, "2.0": 1}, shadow_percent=5
    )
    assert traffic.among({"3.0": 0}) == traffic.without_weights("2.0")
    assert traffic.in_words() == "1.0=1, 2.0=1, shadow 3.0 (5 %)"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"weights": {1.0: 90}}, 'write it in quotes: "1.0"'),
        ({"weights": {"1.0": 0}}, "above 0"),
        ({"weights": {"1.0": -1}}, "weights"),
        ({"weights": {"1.0": float("nan")}}, "weights"),
        ({"weights": {"a/b": 1}}, "weights"),
        ({"weights": {"1.0": 1}, "sticky": {}}, "either header or metadata"),
        ({"weights": {"1.0": 1}, "sticky": {"header": "X", "metadata": "u"}}, "either header"),
        ({"weights": {"1.0": 1}, "sticky": {"header": "a b"}}, "sticky"),
        ({"wieghts": {"1.0": 1}}, "wieghts"),
        ([1], "mapping"),
    ],
)
def test_mistakes_are_named(written: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_traffic(written)
