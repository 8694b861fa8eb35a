"""Labels: which workers fit a model, and the words for those that do not."""

from __future__ import annotations

import pytest

from headrace.config.model.options import missing_labels
from headrace.config.settings import load_settings
from headrace.errors import ConfigError


def test_a_worker_fits_if_it_has_every_label() -> None:
    assert missing_labels([], []) == []
    assert missing_labels(["zone=b"], ["gpu=a100", "zone=b"]) == []
    assert missing_labels(["gpu=h100", "zone=b"], ["gpu=a100", "zone=b"]) == ["gpu=h100"]


def test_the_setting_takes_a_list_and_refuses_what_is_no_label() -> None:
    settings = load_settings(None, {"HEADRACE_WORKER_LABELS": "gpu=a100, zone=b"}, {})
    assert settings.worker_labels == ("gpu=a100", "zone=b")
    with pytest.raises(ConfigError, match="HEADRACE_WORKER_LABELS"):
        load_settings(None, {"HEADRACE_WORKER_LABELS": "gpu"}, {})
