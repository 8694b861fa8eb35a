"""The command of the batch runner."""
