"""TorchServe's calls over gRPC: each is a request to one of its URLs.

Start with service.py. protos/ has TorchServe's own files and the descriptors that `make protos`
writes from them. May import the API of this extension, and api.grpc.
"""
