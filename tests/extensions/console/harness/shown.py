"""A handler with something to show: each input says what becomes of it.

`{"text": …}` is scored. A text with `raise` fails with that text as its message, one with `later`
is tried again, one with `slow` waits for the file `gate` of the options and tells its progress, and
one with `picture` returns a PNG.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

from PIL import Image

from headrace import Handler, Response
from headrace.errors import TransientError


class Shown(Handler):
    def inference(self, items: list[Any]) -> list[Any]:
        return [self.one(item["text"], index) for index, item in enumerate(items)]

    def one(self, text: str, index: int) -> Any:
        if "raise" in text:
            raise ValueError(text)
        if "later" in text:
            raise TransientError("the vocabulary server does not answer")
        if "slow" in text:
            self.wait(Path(self.context.options["gate"]), index)
        if "picture" in text:
            data = io.BytesIO()
            Image.effect_mandelbrot((320, 200), (-2.2, -1.2, 1, 1.2), 60).save(data, "PNG")
            return Response(data.getvalue(), "image/png")
        return {"label": "positive" if len(text) % 3 else "negative", "length": len(text)}

    def wait(self, gate: Path, index: int) -> None:
        while not gate.exists():
            self.context.progress(3, 10, "waiting at the gate", item=index)
            time.sleep(0.1)
