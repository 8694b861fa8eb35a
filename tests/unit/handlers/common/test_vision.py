"""The numbers of vision models, against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from handlers.common.vision import (
    best_classes,
    found_objects,
    pixel_classes,
    segmentation_logits,
    tensor_of,
)
from headrace.errors import HandlerError, InputError


def test_the_likeliest_classes_come_first() -> None:
    values, indices = best_classes(torch.tensor([[1.0, 3.0, 2.0]]), 2)
    total = sum(math.exp(value) for value in (1, 2, 3))
    assert indices.tolist() == [[1, 2]]
    assert values[0].tolist() == pytest.approx([math.exp(3) / total, math.exp(2) / total])
    assert best_classes(torch.zeros(1, 3), 5)[1].shape == (1, 3)


def test_each_pixel_has_its_class_and_probability() -> None:
    logits = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(1))
    found = pixel_classes(logits)
    assert found.shape == (2, 3, 5, 2)
    for n, y, x in np.ndindex(2, 3, 5):
        exponentials = [math.exp(value) for value in logits[n, :, y, x].tolist()]
        best = max(range(4), key=exponentials.__getitem__)
        assert found[n, y, x, 0] == best
        assert found[n, y, x, 1].item() == pytest.approx(
            exponentials[best] / sum(exponentials), rel=1e-5
        )


def test_logits_are_found_in_an_output() -> None:
    logits = torch.zeros(1, 2, 3, 3)
    assert segmentation_logits({"out": logits, "aux": None}) is logits
    assert segmentation_logits(logits) is logits
    output: Any
    for output in ({"logits": logits}, [logits], None):
        with pytest.raises(HandlerError, match='"out": logits'):
            segmentation_logits(output)


def test_objects_below_the_score_are_left_out() -> None:
    detected = {
        "boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        "labels": torch.tensor([3, 1, 2]),
        "scores": torch.tensor([0.5, 0.49, 0.9]),
    }
    boxes, labels, scores = zip(*found_objects(detected), strict=True)
    assert boxes == ([0.0, 1.0, 2.0, 3.0], [8.0, 9.0, 10.0, 11.0])
    assert labels == (3, 2)
    assert scores == (0.5, pytest.approx(0.9))
    assert not found_objects(detected, 1.0)
    with pytest.raises(HandlerError, match="no boxes, labels and scores"):
        found_objects({"boxes": torch.zeros(1, 4)})


def test_nested_lists_become_tensors() -> None:
    assert torch.equal(tensor_of([[1, 2.5]]), torch.tensor([[1.0, 2.5]]))
    wrong: Any
    for wrong in ([[1], [1, 2]], ["a"], [None], [{}]):
        with pytest.raises(InputError, match="the list is not a tensor"):
            tensor_of(wrong)
