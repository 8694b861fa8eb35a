"""From a request of any protocol to its job and its result.

Start with inference.py. May import the tensors of this extension, and what api.routes may.
"""
