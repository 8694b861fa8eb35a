"""The handlers that TorchServe has itself."""
