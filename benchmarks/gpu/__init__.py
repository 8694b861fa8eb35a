"""Models on a GPU behind the queue, against the bare loop: `python -m benchmarks.gpu`."""
