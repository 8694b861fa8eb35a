"""A handler that cannot start, with the type of error that torch raises."""


class Starts:
    def initialize(self, context):
        raise RuntimeError("size mismatch for fc.weight")

    def handle(self, data, context):
        return ["OK"] * len(data)
