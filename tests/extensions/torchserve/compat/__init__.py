"""Headrace beside the real TorchServe: the same archives, the same requests, the same answers."""
