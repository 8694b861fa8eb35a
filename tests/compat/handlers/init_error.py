"""A handler that cannot start."""


class Starts:
    def initialize(self, context):
        raise ValueError("the weights do not fit the model")

    def handle(self, data, context):
        return ["OK"] * len(data)
