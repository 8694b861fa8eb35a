"""A handler that explains: it returns the arguments that it got."""

from ts.torch_handler.base_handler import BaseHandler


class Explained(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, data, *args, **kwargs):
        return data

    def postprocess(self, data):
        return [{"answer": row} for row in data]

    def get_insights(self, tensor_data, raw_data, target=0):
        return [{"insight": len(tensor_data), "target": target} for _ in tensor_data]
