"""A handler that has no memory for a request."""


def handle(data, context):
    if data:
        raise MemoryError("Some Memory Error")
