"""`headrace torchserve`: starts what TorchServe's command line and configuration ask for.

Start with server.py. May import headrace.server and this extension's config and logs.
"""
