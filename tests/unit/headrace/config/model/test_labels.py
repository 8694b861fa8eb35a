"""Labels: which workers fit a model, and the words for those that do not."""

from __future__ import annotations

import pytest

from headrace.config.model.capacity import Capacity, Needs, misfits
from headrace.config.settings import load_settings
from headrace.errors import ConfigError


def test_a_worker_fits_if_it_has_every_label() -> None:
    has = ["gpu=a100", "zone=b"]
    assert misfits(Needs(), [], Capacity()) == []
    assert misfits(Needs(labels=["zone=b"]), has, Capacity()) == []
    assert misfits(Needs(labels=["gpu=h100", "zone=b"]), has, Capacity()) == ["lacks gpu=h100"]


def test_the_setting_takes_a_list_and_refuses_what_is_no_label() -> None:
    settings = load_settings(None, {"HEADRACE_WORKER_LABELS": "gpu=a100, zone=b"}, {})
    assert settings.worker_labels == ("gpu=a100", "zone=b")
    with pytest.raises(ConfigError, match="HEADRACE_WORKER_LABELS"):
        load_settings(None, {"HEADRACE_WORKER_LABELS": "gpu"}, {})
