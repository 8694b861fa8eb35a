"""The paths of v2, by which Triton's and KServe's HTTP clients call.

Start with endpoints.py. May import the jobs, models and tensors of this extension.
"""
