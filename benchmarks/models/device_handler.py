"""A handler whose `inference` takes a fixed time, as a device does; `preprocess` decodes a JPEG."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from typing_extensions import override

from headrace.handler import Context, Handler

SIDE_PX = 224


class Device(Handler):
    """Options: `hold`, `lock` or `sleep`, and `ms`, the time of a batch.

    With `lock` a batch takes that much CPU time and holds the interpreter's lock, as a model does
    that is bound by the launches of its kernels. With `sleep` it waits, as for a GPU.
    """

    overlap: ClassVar[bool] = True

    @override
    def initialize(self, context: Context) -> None:
        self._seconds = float(context.options["ms"]) / 1000
        self._run = self._hold if context.options["hold"] == "lock" else self._sleep

    @override
    def initialize_preprocess(self, context: Context) -> None:
        """Need nothing."""

    @override
    def example_input(self) -> bytes:
        # Decoded as long as a photograph: with it, the place of `preprocess` is chosen.
        file = io.BytesIO()
        noise = Image.effect_noise((125, 94), 80).convert("RGB")
        noise.resize((500, 375)).save(file, "JPEG", quality=90)
        return file.getvalue()

    @override
    def preprocess(self, inputs: Sequence[bytes]) -> list[Any]:
        return [self._decoded(jpeg) for jpeg in inputs]

    @override
    def inference(self, items: Sequence[Any]) -> list[int]:
        self._run()
        return [int(item[0, 0, 0]) for item in items]

    @override
    def postprocess(self, outputs: Sequence[int]) -> list[int]:
        return list(outputs)

    def _decoded(self, jpeg: bytes) -> Any:
        image = Image.open(io.BytesIO(jpeg)).convert("RGB")
        return np.asarray(image.resize((SIDE_PX, SIDE_PX)))

    def _hold(self) -> None:
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass

    def _sleep(self) -> None:
        time.sleep(self._seconds)
