"""A handler that looks for its files in the current folder and in the model's folder."""

import os


class RelativeFiles:
    def initialize(self, context):
        properties = context.system_properties
        self.names = sorted(
            name for name in os.listdir(properties.get("model_dir")) if os.path.isfile(name)
        )
        with open("labels.txt") as file:
            self.labels = file.read().split()

    def handle(self, data, context):
        return [
            {"names": [n for n in self.names if n != "__pycache__"], "labels": self.labels}
        ] * len(data)
