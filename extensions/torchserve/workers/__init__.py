"""What a worker reports to TorchServe's metrics: of its batches, its handlers and its host.

May import workers and this extension's metrics.
"""
