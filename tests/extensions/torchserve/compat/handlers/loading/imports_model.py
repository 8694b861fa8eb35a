"""A handler that imports `model`: another archive has a module of the same name."""

import importlib

from ts.utils.util import list_classes_from_module


class ImportsModel:
    def initialize(self, context):
        module = importlib.import_module("model")
        classes = list_classes_from_module(module)
        self.names = [one.__name__ for one in classes]
        self.model = classes[0]()

    def handle(self, data, context):
        return [{"classes": self.names, "says": self.model.says()} for _ in data]
