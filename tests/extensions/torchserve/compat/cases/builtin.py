"""Requests of TorchServe's built-in handlers."""

from __future__ import annotations

import base64
import io
import json
from typing import Final

import numpy as np
from PIL import Image

from tests.extensions.torchserve.compat.cases.table import (
    JSON,
    MULTIPART,
    TEXT,
    Scenario,
    multipart,
    predict,
)
from tests.extensions.torchserve.compat.servers import Ask


def _encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def _picture() -> Image.Image:
    # Bright, so that the detector is sure of some objects, and no square.
    tones = np.random.default_rng(1).integers(90, 200, (70, 90, 3)).astype(np.uint8)
    tones[..., 0] += 55
    return Image.fromarray(tones)


PICTURE: Final = _encoded(_picture(), "PNG")
GREY: Final = _encoded(_picture().convert("L"), "PNG")
BASE64: Final = base64.b64encode(PICTURE)
TENSOR: Final = json.dumps([[[0.25, 0.75]] * 2, [[1.0, 0.5]] * 2, [[0.0, 0.125]] * 2]).encode()
PNG: Final = {"Content-Type": "image/png"}
IMAGE_HANDLERS: Final = ("image_classifier", "image_segmenter", "object_detector")
TEXTS: Final = (b"<b>Very</b> good!", "bad, naïve".encode(), b"I don't like it", b"It's")


def _explained(model: str, body: bytes, **more: object) -> Ask:
    return Ask("POST", f"/explanations/{model}", body, **more)  # type: ignore[arg-type]


BUILTIN: Final = (
    *(
        Scenario(
            model,
            (
                predict(model, PICTURE),
                predict(model, PICTURE, headers=PNG),
                predict(
                    model, multipart(("data", "a.png", "image/png", PICTURE)), headers=MULTIPART
                ),
                predict(model, BASE64, headers=TEXT),
                predict(model, b'"%b"' % BASE64, headers=JSON),
                predict(model, TENSOR, headers=JSON),
                predict(model, b"no image"),
                predict(model, b'{"a": 1}', headers=JSON),
                predict(model, b""),
            ),
            (model,),
        )
        for model in IMAGE_HANDLERS
    ),
    Scenario(
        "image_explanations",
        (
            # That of a picture is longer than max_response_size.
            _explained("image_classifier", PICTURE),
            _explained("image_classifier", b"no image"),
            _explained("image_classifier", TENSOR, headers=JSON),
            _explained("object_detector", PICTURE),
        ),
        ("image_classifier", "object_detector"),
    ),
    Scenario(
        "images_that_only_headrace_takes",
        (
            predict("image_classifier", GREY, differs="grey-image"),
            predict("few_labels", PICTURE, differs="few-labels"),
            predict("few_classes", PICTURE, differs="few-classes"),
            _explained("image_segmenter", TENSOR, headers=JSON, differs="segmenter-explained"),
            predict("image_classifier", _encoded(_picture(), "PCX"), differs="image-format"),
        ),
        ("image_classifier", "image_segmenter", "few_labels", "few_classes"),
    ),
    Scenario(
        "text_classifier",
        (
            *(predict("text_classifier", text, headers=TEXT) for text in TEXTS),
            predict("text_classifier", TEXTS[0]),
            predict("text_classifier", b'"very good"', headers=JSON),
            predict("text_classifier", multipart(("data", None, None, b"bad")), headers=MULTIPART),
            predict("text_classifier", b"unheard of", headers=TEXT),
            predict("text_classifier", b"'cause", headers=TEXT, differs="text-contraction"),
            predict("text_classifier", b"\xff\xfe"),
            predict("text_classifier", b"", headers=TEXT),
            _explained("text_classifier", TEXTS[0], headers=TEXT),
            _explained("text_classifier", b"unheard of", headers=TEXT),
        ),
        ("text_classifier",),
    ),
)
