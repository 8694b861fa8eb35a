"""gRPC servers of extensions, on grpcio's asyncio. Imported only where an extension has a port.

Start with server.py. May import all of the API below its extensions.
"""
