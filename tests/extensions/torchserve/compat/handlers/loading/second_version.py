"""The class of a second version of a model: it says which version it is."""


class Second:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]

    def handle(self, data, context):
        return [f"OK {self.version}" for _ in data]
