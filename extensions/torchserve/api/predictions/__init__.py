"""TorchServe's URLs of predictions: from its request to a job, and from the result to its reply.

Start with predict.py. May import what the folder above may.
"""
