"""What crosses from a preprocess process, and what becomes of its shared memory."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.errors import HandlerError, InputError
from workers.model_process.outcomes import RaisedError
from workers.model_process.preprocess.shared_memory import Packer, SharedBuffer, unpack


def crossed(values: Any, slab: SharedBuffer | None = None) -> Any:
    packer = Packer()
    packed = packer.pack(values)
    slab = slab or SharedBuffer.new()
    slab.fill(packer.arrays, packer.size)
    return unpack(packed, slab.fd, packer.size, lambda: None)


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32,
     torch.float64, torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 5)])
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = (torch.rand(shape) * 100).to(dtype)
    got = crossed([sent])[0]
    assert isinstance(got, Tensor)
    assert got.dtype is dtype
    assert got.shape == sent.shape
    assert torch.equal(got, sent)


@pytest.mark.parametrize("dtype", ["u1", "?", "<i8", ">f4", "<f2", "<U5", "M8[s]", "S3"])
def test_arrays(dtype: str) -> None:
    sent = np.array([["0", "1"], ["1", "0"]]).astype("i8").astype(dtype)
    got = crossed({"a": sent})["a"]
    assert isinstance(got, np.ndarray)
    assert got.dtype == sent.dtype
    assert (got == sent).all()


def test_views_that_are_not_contiguous() -> None:
    array, tensor = np.arange(24).reshape(4, 6), torch.arange(24).reshape(4, 6)
    got = crossed([array.T, array[::2, ::-1], tensor.T, tensor[:, 1::2]])
    for mine, sent in zip(got, [array.T, array[::2, ::-1], tensor.T, tensor[:, 1::2]], strict=True):
        assert (mine == sent).all()


def test_what_stands_between_the_arrays_crosses_as_it_is() -> None:
    sent = [{"ids": torch.tensor([1, 2]), "text": "é", "n": 3, "f": 0.5, "none": None, "b": b"\0"}]
    (got,) = crossed(sent)
    assert got.pop("ids").tolist() == [1, 2]
    assert got == {"text": "é", "n": 3, "f": 0.5, "none": None, "b": b"\0"}


def test_a_whole_batch_as_one_tensor() -> None:
    assert torch.equal(crossed(torch.ones(4, 3)), torch.ones(4, 3))


def test_an_error_keeps_its_words() -> None:
    good, bad = crossed([1, InputError("send an image")])
    assert good == 1
    assert isinstance(bad, RaisedError)
    assert bad.outcome[:4] == [False, "input-error", "send an image", False]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"),
        (np.array([object()]), "an array of object"),
        (np.zeros(2, dtype=[("a", "i4")]), "an array of"),
        (torch.ones(2, 2).to_sparse(), "layout torch.sparse_coo"),
        (1 << 70, "preprocess returned a value that cannot be sent"),
    ],
)
def test_what_cannot_cross_is_named(value: Any, named: str) -> None:
    with pytest.raises(HandlerError, match=named):
        Packer().pack([value])


def test_a_slab_is_free_when_its_last_array_is_gone_and_not_before() -> None:
    slab, freed = SharedBuffer.new(), []
    packer = Packer()
    packed = packer.pack([np.arange(3), torch.arange(3)])
    slab.fill(packer.arrays, packer.size)
    got = unpack(packed, slab.fd, packer.size, lambda: freed.append(1))
    row: Any = got[1][1:]
    array_view: Any = got[0][:2]
    del got
    gc.collect()
    assert not freed
    del array_view
    gc.collect()
    assert not freed
    assert row.tolist() == [1, 2]
    del row
    gc.collect()
    assert freed == [1]


def test_without_arrays_it_is_free_at_once() -> None:
    freed: list[int] = []
    assert unpack(Packer().pack([1]), -1, 0, lambda: freed.append(1)) == [1]
    assert freed == [1]


def test_a_slab_grows_and_is_used_again() -> None:
    slab = SharedBuffer.new()
    for size in (10, 100_000, 5):
        got = crossed([np.full(size, size)], slab)[0]
        assert (got == size).all()
    assert os.fstat(slab.fd).st_size >= 800_000
