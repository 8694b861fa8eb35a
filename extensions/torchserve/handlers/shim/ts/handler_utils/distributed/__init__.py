"""Engines that split a model over devices: DeepSpeed in one process works, PiPPy does not."""
