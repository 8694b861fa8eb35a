"""A handler that returns what its `model-config.yaml` has."""


class YamlConfig:
    def initialize(self, context):
        self.config = context.model_yaml_config
        self.greeting = self.config["handler"]["greeting"]

    def handle(self, data, context):
        return [{"greeting": self.greeting, "config": self.config}] * len(data)
