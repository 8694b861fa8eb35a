"""What a change makes of the registered models."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headrace.config.model.traffic import Sticky, Traffic
from headrace.errors import Conflict, InvalidRequest, ModelNotFound
from headrace.registry.model import (
    Change,
    DeclaredModels,
    Registry,
    choose_default,
    differences,
    digest_of,
    register,
    reload,
    set_options,
    set_traffic,
    unregister,
)

WORDS = {"handler": "words.py", "max_batch_size": 8}


def after(registry: Registry, changes: list[Change]) -> Registry:
    """Return the registry with these changes, as `change.lua` writes them."""
    models = dict(registry.models)
    for change in changes:
        if change.after is None:
            models.pop(change.name)
        else:
            models[change.name] = change.after
    return Registry(registry.generation + 1, registry.file, models)


def applied(*files: dict[str, tuple[str, dict[str, object]]], prune: bool = True) -> Registry:
    registry = Registry()
    for file in files:
        registry = after(registry, DeclaredModels(file, "").changes(registry, prune=prune))
    return registry


def test_a_file_that_was_applied_already_changes_nothing() -> None:
    registry = applied({"words": ("1.0", WORDS)})

    assert DeclaredModels({"words": ("1.0", WORDS)}, "").changes(registry, prune=True) == []


def test_a_new_version_in_the_file_replaces_the_one_before() -> None:
    registry = applied({"words": ("1.0", WORDS)}, {"words": ("2.0", WORDS)})

    assert list(registry.get("words").versions) == ["2.0"]
    assert registry.get("words").default_version == "2.0"


def test_without_prune_the_version_before_stays() -> None:
    registry = applied({"words": ("1.0", WORDS)}, {"words": ("2.0", WORDS)}, prune=False)

    assert list(registry.get("words").versions) == ["1.0", "2.0"]
    assert registry.get("words").default_version == "2.0"


def test_a_change_over_the_api_stays_when_the_file_is_applied_again() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    registry = after(registry, set_options(registry, "words", "", {"max_batch_size": 2}))
    again = {"words": ("1.0", {**WORDS, "weight": 2.0})}
    registry = after(registry, DeclaredModels(again, "").changes(registry, prune=True))

    version = registry.get("words").version("")
    assert version.options == {**WORDS, "weight": 2.0, "max_batch_size": 2}
    assert differences(registry) == [("words", "1.0", "max_batch_size", 8, 2)]


def test_what_the_file_has_and_the_registry_has_no_more_is_a_difference() -> None:
    registry = applied({"words": ("1.0", WORDS), "spare": ("1.0", WORDS), "kept": ("1.0", WORDS)})
    registry = replace(registry, declared=dict.fromkeys(registry.models, "1.0"))
    assert differences(registry) == []
    removed = after(registry, register(registry, "words", "2.0", WORDS))
    removed = after(removed, choose_default(removed, "words", "2.0"))
    for name, version in (("words", "1.0"), ("spare", "")):
        removed = after(removed, unregister(removed, name, version))
    assert differences(replace(removed, declared=registry.declared)) == [
        ("words", "1.0", "version", "1.0", None),
        ("spare", "1.0", "version", "1.0", None),
        ("words", "2.0", "", None, None),
        ("words", "2.0", "default_version", "1.0", "2.0"),
    ]


def test_none_takes_a_change_back() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    registry = after(registry, set_options(registry, "words", "", {"max_batch_size": 2}))
    registry = after(registry, set_options(registry, "words", "", {"max_batch_size": None}))

    assert registry.get("words").version("").options == WORDS
    assert differences(registry) == []


def test_setting_what_holds_already_is_no_change() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    registry = after(registry, set_options(registry, "words", "1.0", {"weight": 2.0}))

    assert set_options(registry, "words", "1.0", {"weight": 2.0}) == []


def test_a_model_that_the_file_has_no_more_is_removed() -> None:
    registry = applied({"words": ("1.0", WORDS), "other": ("1.0", WORDS)})

    (change,) = DeclaredModels({"words": ("1.0", WORDS)}, "").changes(registry, prune=True)

    assert (change.name, change.after) == ("other", None)


def test_prune_keeps_what_was_registered_or_changed_over_the_api() -> None:
    registry = applied({"words": ("1.0", WORDS), "changed": ("1.0", WORDS)})
    registry = after(registry, register(registry, "added", "1.0", WORDS))
    registry = after(registry, set_options(registry, "changed", "", {"weight": 2.0}))
    registry = after(
        registry, DeclaredModels({"words": ("1.0", WORDS)}, "").changes(registry, prune=True)
    )

    assert sorted(registry.models) == ["added", "changed", "words"]
    assert registry.get("changed").version("1.0").options == {**WORDS, "weight": 2.0}
    assert DeclaredModels({"words": ("1.0", WORDS)}, "").changes(registry, prune=True) == []


def test_a_later_version_is_the_default_only_when_it_is_chosen() -> None:
    registry = after(Registry(), register(Registry(), "words", "1.0", WORDS))
    registry = after(registry, register(registry, "words", "2.0", WORDS))
    assert registry.get("words").default_version == "1.0"

    registry = after(registry, choose_default(registry, "words", "2.0"))
    assert registry.get("words").default_version == "2.0"


def test_the_same_registration_again_loads_again() -> None:
    registry = after(Registry(), register(Registry(), "words", "1.0", WORDS))
    registry = after(registry, register(registry, "words", "1.0", WORDS))

    assert registry.get("words").version("1.0").loads == 1


def test_a_reload_counts() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    registry = after(registry, reload(registry, "words"))
    registry = after(registry, reload(registry, "words", "1.0"))

    assert registry.get("words").version("1.0").loads == 2


def test_the_default_version_cannot_be_removed_while_there_is_another() -> None:
    registry = after(Registry(), register(Registry(), "words", "1.0", WORDS))
    registry = after(registry, register(registry, "words", "2.0", WORDS))

    with pytest.raises(Conflict, match=r"1\.0 is the default"):
        unregister(registry, "words", "1.0")
    registry = after(registry, unregister(registry, "words", "2.0"))
    registry = after(registry, unregister(registry, "words", "1.0"))
    assert registry.models == {}


def test_an_unknown_model_or_version_names_the_known_ones() -> None:
    registry = applied({"words": ("1.0", WORDS)})

    with pytest.raises(ModelNotFound, match="did you mean words"):
        reload(registry, "wrods")
    with pytest.raises(ModelNotFound, match=r"no version '9'"):
        set_options(registry, "words", "9", {})


def test_the_text_of_a_change_shows_no_hidden_or_long_value() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    secret = {"options": {"key": "s3cret"}, "weights": "s3cret.pt", "source": "s3cret.zip"}
    new = {**secret, "weight": 2.0, "batch_key": "/" + 90 * "s", "allowed_batch_sizes": [1]}
    keys = "allowed_batch_sizes, batch_key, options, source, weight=2.0, weights"

    (change,) = set_options(registry, "words", "", new)
    assert change.what == f"set {keys} of version 1.0"
    (change,) = DeclaredModels({"words": ("1.0", {**WORDS, **new})}, "").changes(
        registry, prune=True
    )
    assert change.what == f"applied the file: {keys}"


def test_the_text_of_a_change_tells_what_is_taken_back() -> None:
    registry = applied({"words": ("1.0", {**WORDS, "weight": 3.0})})
    registry = after(registry, set_options(registry, "words", "", {"replicas": 2}))

    (change,) = set_options(registry, "words", "", {"replicas": None, "max_batch_size": 2})
    assert change.what == "set max_batch_size=2, took back replicas of version 1.0"
    (change,) = DeclaredModels({"words": ("1.0", WORDS)}, "").changes(registry, prune=True)
    assert change.what == "applied the file: weight removed"


def test_the_digest_is_of_the_content() -> None:
    assert digest_of({"a": {"x": 1, "y": 2}}) == digest_of({"a": {"y": 2, "x": 1}})
    assert digest_of({"a": {"x": 1}}) != digest_of({"a": {"x": 2}})


def with_two_versions(traffic: Traffic | None = None) -> Registry:
    registry = applied({"words": ("1.0", WORDS)})
    registry = after(registry, register(registry, "words", "2.0", {"handler": "words2.py"}))
    return after(registry, set_traffic(registry, "words", traffic)) if traffic else registry


CANARY = Traffic(weights={"1.0": 90, "2.0": 10}, sticky=Sticky(header="X-User"))


def test_traffic_names_registered_versions_only() -> None:
    registry = with_two_versions()
    with pytest.raises(ModelNotFound, match=r"no version '3\.0'"):
        set_traffic(registry, "words", Traffic(weights={"1.0": 1, "3.0": 1}))

    (change,) = set_traffic(registry, "words", CANARY)
    assert change.what == "routed jobs to 1.0=90, 2.0=10, sticky by header X-User"
    registry = after(registry, [change])
    assert registry.get("words").routing == CANARY
    assert set_traffic(registry, "words", CANARY) == []
    back = after(registry, set_traffic(registry, "words", None))
    assert back.get("words").routing is None


def test_a_version_that_the_traffic_names_is_not_removed() -> None:
    registry = with_two_versions(CANARY)
    with pytest.raises(Conflict, match=r"1\.0=90, 2\.0=10"):
        unregister(registry, "words", "2.0")

    ended = after(registry, set_traffic(registry, "words", Traffic()))
    assert ended.get("words").traffic is None
    assert list(after(ended, unregister(ended, "words", "2.0")).get("words").versions) == ["1.0"]


def test_a_promotion_ends_the_traffic() -> None:
    registry = with_two_versions(CANARY)
    (change,) = choose_default(registry, "words", "2.0")
    model = after(registry, [change]).get("words")

    assert (model.default_version, model.routing) == ("2.0", None)
    assert change.what.startswith("chose version 2.0 as the default, and ended the traffic 1.0=90")


def test_the_file_declares_traffic_and_the_api_wins_over_it() -> None:
    declared = {**WORDS, "traffic": {"weights": {"1.0": 80, "2.0": 20}}}
    registry = with_two_versions()
    registry = after(
        registry, DeclaredModels({"words": ("1.0", declared)}, "").changes(registry, prune=True)
    )
    model = registry.get("words")
    assert model.routing == Traffic(weights={"1.0": 80, "2.0": 20})
    assert differences(registry) == [("words", "2.0", "", None, None)]

    chosen = after(registry, set_traffic(registry, "words", CANARY))
    again = after(
        chosen, DeclaredModels({"words": ("1.0", declared)}, "").changes(chosen, prune=True)
    )
    assert again.get("words").routing == CANARY
    (_, row) = differences(chosen)
    assert row[2:] == ("traffic", declared["traffic"], msgspec.to_builtins(CANARY))
    # None at all is a choice too: the file is asked again only after it is taken back.
    none = after(chosen, choose_default(chosen, "words", "1.0"))
    assert none.get("words").routing is None
    assert after(none, set_traffic(none, "words", None)).get("words").routing == model.routing


def test_a_new_version_in_the_file_replaces_none_that_the_traffic_names() -> None:
    registry = applied({"words": ("1.0", WORDS)})
    options = {**WORDS, "traffic": {"weights": {"1.0": 90, "2.0": 10}}}
    registry = after(
        registry, DeclaredModels({"words": ("2.0", options)}, "").changes(registry, prune=True)
    )

    model = registry.get("words")
    assert sorted(model.versions) == ["1.0", "2.0"]
    assert model.routing is not None
    ended = after(
        registry, DeclaredModels({"words": ("3.0", options)}, "").changes(registry, prune=True)
    )
    kept = ended.get("words").versions["2.0"]
    assert (kept.declared, kept.changed) == (None, WORDS)


def test_traffic_is_no_option_of_a_version() -> None:
    registry = with_two_versions()
    with pytest.raises(InvalidRequest, match="belongs to the model"):
        set_options(registry, "words", "2.0", {"traffic": {"weights": {"2.0": 1}}})
    with pytest.raises(InvalidRequest, match="belongs to the model"):
        register(registry, "words", "3.0", {**WORDS, "traffic": {"weights": {"2.0": 1}}})
