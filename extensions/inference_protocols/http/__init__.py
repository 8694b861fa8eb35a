"""The paths of v2, by which Triton's and KServe's HTTP clients call.

Start with table.py. May import the jobs and the tensors of this extension.
"""
