"""TorchServe's extension, and the points of the core at which it is asked."""
