"""TorchServe's URLs on a real server."""
