"""A handler that cannot start: its `model-config.yaml` names the error."""

ERRORS = {
    "value": ValueError("the weights do not fit the model"),
    # As torch raises it.
    "runtime": RuntimeError("size mismatch for fc.weight"),
    "memory": MemoryError("Some Memory Error"),
}


class Starts:
    def initialize(self, context):
        raise ERRORS[context.model_yaml_config["handler"]["raises"]]

    def handle(self, data, context):
        return ["OK"] * len(data)
