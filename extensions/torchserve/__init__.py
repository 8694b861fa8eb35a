"""TorchServe's URLs, handlers, archives, logs, metrics and command."""
