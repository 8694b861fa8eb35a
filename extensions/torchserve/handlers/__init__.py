"""Runs the handlers of TorchServe's archives: the adapter, and `shim` with the package `ts`.

Start with handler.py. `shim` is put on `sys.path` only in the model process of such an archive.
"""
