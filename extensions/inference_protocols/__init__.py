"""Clients of Triton, KServe and TensorFlow Serving: their protocols over HTTP and gRPC."""
