"""TorchServe's URLs without a server."""
