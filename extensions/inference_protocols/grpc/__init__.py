"""The calls of `inference.GRPCInferenceService`, as Triton has them.

Start with service.py. protos/ has the published files and the descriptors that `make protos` writes
from them. May import the jobs, models and tensors of this extension, and api.grpc.
"""
