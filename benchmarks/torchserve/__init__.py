"""TorchServe's URLs: against TorchServe itself, and against Headrace's own route."""
