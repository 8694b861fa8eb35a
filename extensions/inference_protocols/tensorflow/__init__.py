"""TensorFlow Serving's REST, of which KServe V1 is a part, and its calls over gRPC.

Start with calls.py. May import the grpc, jobs, models and tensors of this extension.
"""
