"""A handler that has no memory for its model."""


class Loads:
    def initialize(self, context):
        raise MemoryError("Some Memory Error")

    def handle(self, data, context):
        return ["OK"] * len(data)
