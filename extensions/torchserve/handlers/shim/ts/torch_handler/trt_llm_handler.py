"""TorchServe's handler of TensorRT-LLM, which Headrace does not have: it fails at the load."""

from __future__ import annotations

from typing import Any, NoReturn

from typing_extensions import override

from headrace.errors import ConfigError
from ts.torch_handler.base_handler import BaseHandler


class TRTLLMHandler(BaseHandler):
    """Fails at the load, as Headrace does not batch the tokens of running generations."""

    @override
    def initialize(self, context: Any) -> NoReturn:
        raise ConfigError(
            "Headrace has no TensorRT-LLM handler: a batch ends before the next one begins, so "
            "the engine could not add a request to running generations",
            hint="serve the model with `trtllm-serve`; for offline prompts write a handler that "
            "calls tensorrt_llm.LLM(...).generate with a batch, and set a large max_batch_size",
        )
