"""What the context has."""

import os


class ContextInfo:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        properties = context.system_properties
        info = {
            "same": context is self.context,
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
