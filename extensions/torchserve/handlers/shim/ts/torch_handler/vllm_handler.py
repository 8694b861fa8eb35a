"""TorchServe's handler of vLLM, which Headrace does not have: it fails at the load."""

from __future__ import annotations

from typing import Any, NoReturn

from typing_extensions import override

from headrace.errors import ConfigError
from ts.torch_handler.base_handler import BaseHandler


class VLLMHandler(BaseHandler):
    """Fails at the load, as Headrace does not batch the tokens of running generations."""

    @override
    def initialize(self, context: Any) -> NoReturn:
        raise ConfigError(
            "Headrace has no vLLM handler: a batch ends before the next one begins, so vLLM could "
            "not add a request to running generations",
            hint="serve the model with `vllm serve`; for offline prompts write a handler that "
            "calls vllm.LLM(...).generate with a batch, and set a large max_batch_size",
        )
