"""What the context has, and an attribute that the handler makes itself."""

import os


class ContextInfo:
    def initialize(self, context):
        self.context = context
        context.cache = {"calls": 0}

    def handle(self, data, context):
        context.cache["calls"] += 1
        properties = context.system_properties
        info = {
            "same": context is self.context,
            "cached": context.cache["calls"] > 0,
            "model_name": context.model_name,
            "version": context.manifest["model"]["modelVersion"],
            "handler": context.manifest["model"]["handler"],
            "properties": sorted(properties),
            "gpu_id": properties.get("gpu_id"),
            "server_name": properties.get("server_name"),
            "batch_size": properties.get("batch_size"),
            "cwd": os.path.realpath(properties.get("model_dir")) == os.getcwd(),
            "yaml": context.model_yaml_config,
            "metrics": type(context.metrics).__name__,
        }
        return [info] * len(data)
