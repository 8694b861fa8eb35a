"""A handler that MicroBatching replaces, without a call of its base class's `__init__`."""

from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class MicroBatched(BaseHandler):
    def __init__(self):
        self.handle = MicroBatching(self)
        self.sizes = []

    def initialize(self, ctx):
        self.handle.parallelism = ctx.model_yaml_config["micro_batching"]["parallelism"]
        self.handle.micro_batch_size = ctx.model_yaml_config["micro_batching"]["micro_batch_size"]
        self.context = ctx
        self.initialized = True

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, data, *args, **kwargs):
        return [(value, len(data)) for value in data]

    def postprocess(self, data):
        return [{"value": bytes(value).decode(), "micro": micro <= 2} for value, micro in data]
