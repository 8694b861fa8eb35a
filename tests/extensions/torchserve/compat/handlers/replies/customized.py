"""A handler that describes its model."""

from ts.torch_handler.base_handler import BaseHandler


class Customized(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True

    def preprocess(self, data):
        return data

    def inference(self, data, *args, **kwargs):
        return ["OK"] * len(data)

    def postprocess(self, data):
        return data

    def describe_handle(self):
        return {"data1": "data1", "limits": {"longest": 512}}
