from __future__ import annotations

import torch

from handlers.common.tensors import Transfer


def test_on_a_cpu_nothing_is_copied_but_into_the_batch() -> None:
    transfer = Transfer("cpu")
    items = [torch.full((2, 3), n, dtype=torch.uint8) for n in range(3)]
    batch = transfer.to_device(items)
    assert torch.equal(batch, torch.stack(items))
    fetched = transfer.to_host(batch)
    assert fetched.arrived is None
    assert fetched.wait()[0].data_ptr() == batch.data_ptr()
