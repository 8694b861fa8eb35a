"""Explanations of predictions, through Captum, which is imported for the first one.

A job requests an explanation by its parameter `explain`, if the model declares it. Or it does so by
the header `explain: True`, if the model names that header. The parameter `target` is the class to
explain.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from handlers.common.items import ItemHandler
from headrace.errors import HandlerError, InputError
from headrace.handler import Context

#: The steps of the integral of a vision model.
STEPS: Final = 15
#: The parameters and the header that ask for an explanation.
EXPLAIN: Final = "explain"
TARGET: Final = "target"

Forward = Callable[..., Any]
#: A class, or the indices of one value of the output.
Target = int | tuple[int, ...]


def captum_attr() -> Any:
    """Return the module `captum.attr`; raise HandlerError if it cannot be imported."""
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise HandlerError(
            f"an explanation needs the package captum, which cannot be imported: {error}; "
            "install it where the worker runs: pip install 'headrace[explain]'"
        ) from error


class ExplainingHandler(ItemHandler):
    """A handler whose jobs can ask for an explanation in place of a prediction.

    An item is a tensor. That of such a job is a pair: what `explain` gets, and the target.
    """

    def predict(self, items: Sequence[Tensor]) -> Any:
        """Run the model on items."""
        raise NotImplementedError

    def results(self, outputs: Any) -> list[Any]:
        """Return one result for each item that `predict` got."""
        raise NotImplementedError

    def to_explain(self, item: Tensor, data: Any) -> Any:
        """Return what `explain` gets for an input with this item."""
        return item

    def explain(self, item: Any, target: Any) -> Any:
        """Return the explanation of what `to_explain` returned, as the result of its job."""
        raise NotImplementedError

    @override
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        items = super().preprocess(inputs)
        for place, target in asked_targets(self.context, len(items)).items():
            if not isinstance(items[place], Exception):
                items[place] = [self.to_explain(items[place], inputs[place]), target]
        return items

    @override
    def inference(self, items: Any) -> Any:
        plain = [item for item in items if isinstance(item, Tensor)]
        explained: dict[int, Any] = {}
        if len(plain) < len(items):
            for item in items:
                # An item that fills the batch up is the last one again.
                if not isinstance(item, Tensor) and id(item) not in explained:
                    explained[id(item)] = self._explanation_or_error(*item)
        order = [None if isinstance(item, Tensor) else explained[id(item)] for item in items]
        return self.predict(plain) if plain else None, order

    @override
    def postprocess(self, outputs: Any) -> list[Any]:
        predicted, order = outputs
        results = iter(self.results(predicted) if predicted is not None else ())
        return [next(results) if one is None else one for one in order]

    def _explanation_or_error(self, item: Any, target: Any) -> Any:
        try:
            return self.explain(item, target)
        except (InputError, HandlerError) as error:
            return error.with_traceback(None)


def asked_targets(context: Context, count: int) -> dict[int, Any]:
    """Return the target of each explanation in a batch, by place; None if the job names none."""
    asked: dict[int, Any] = {}
    for place, parameters in enumerate(context.parameters[:count]):
        header = context.headers[place].get(EXPLAIN) if place < len(context.headers) else None
        if parameters.get(EXPLAIN) is True or header == "True":
            asked[place] = parameters.get(TARGET)
    return asked


def read_target(value: object) -> Target:
    """Return a target as Captum takes it.

    Args:
        value: a number, a list of them, or either as text or bytes, as a form has it. Nothing
            is class 0.

    Raises:
        InputError: it has another form.
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    if value is None or value == "":
        return 0
    parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
    try:
        if isinstance(parts, (list, tuple)):
            indices = tuple(int(part) for part in parts)
            return indices[0] if len(indices) == 1 else indices
        if isinstance(parts, int):
            return int(parts)
    except (TypeError, ValueError):
        pass
    raise InputError(f"the target {value!r} is not a class; send its index, such as 281")


def explain_image(forward: Forward, image: Tensor, target: Target) -> list[Any]:
    """Return the integrated gradients of an image, as nested lists of the image's shape.

    Args:
        forward: the model, or a function of a batch that returns its logits.
        image: what the model gets for this image, without the dimension of the batch.

    Raises:
        HandlerError: Captum is not installed.
        InputError: the model has no such class.
    """
    gradients = captum_attr().IntegratedGradients(forward)
    return image_attributions(gradients, image.unsqueeze(0), target)[0]


def image_attributions(gradients: Any, images: Tensor, target: Target) -> list[list[Any]]:
    """Return the attributions of images (N, ...) for one target, as one nested list each.

    Args:
        gradients: Captum's `IntegratedGradients` of the model.

    Raises:
        InputError: the model has no such class.
    """
    found = _attributed(gradients, images.detach().clone(), target=target, n_steps=STEPS)
    rows: list[list[Any]] = found.cpu().tolist()
    return rows


def text_attributions(gradients: Any, tokens: Tensor, target: Target) -> Tensor:
    """Return the attributions of one text at the model's embedding, (rows, values).

    Args:
        gradients: Captum's `LayerIntegratedGradients` of the embedding.
        tokens: the ids of the text's tokens, (T).

    Raises:
        InputError: the model has no such class.
    """
    offsets = torch.zeros(1, dtype=torch.long, device=tokens.device)
    return _attributed(
        gradients, tokens, torch.zeros_like(tokens), additional_forward_args=(offsets,),
        target=target,
    )  # fmt: skip


def _attributed(gradients: Any, *inputs: Tensor, target: Target, **options: Any) -> Tensor:
    try:
        found: Tensor = gradients.attribute(*inputs, target=target, **options)
    except (IndexError, AssertionError) as error:
        raise InputError(f"the model has no class {target}: {error}") from None
    return found.detach().float()


def importances_of(attributions: Tensor) -> Tensor:
    """Return attributions (rows, values) as shares of their row, over the length of all rows."""
    shares = attributions.softmax(dim=-1)
    length: Tensor = shares.sum(dim=-1).norm()
    return shares / length


def text_gradients(model: object) -> Any:
    """Return Captum's `LayerIntegratedGradients` of a text model's `embedding`.

    Raises:
        HandlerError: the model has no `embedding`, or Captum is not installed.
    """
    embedding = getattr(model, "embedding", None)
    if embedding is None:
        raise HandlerError(
            f"an explanation needs the layer `embedding` of the model, and "
            f"{type(model).__name__} has none; name its embedding so"
        )
    return captum_attr().LayerIntegratedGradients(model, embedding)
