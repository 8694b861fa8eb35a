"""TorchServe's HTTP interface: prediction, management and metrics, on the ports that it had.

Start with app.py. It makes ordinary jobs and changes of the registry. It may import what
api.routes may import, api.routes, and this extension's config, logs and metrics.
"""
