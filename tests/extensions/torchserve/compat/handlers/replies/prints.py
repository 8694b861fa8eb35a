"""A handler that prints: lines, metrics by hand, and a part of a line to the error output."""

import sys


def handle(data, context):
    if data is None:
        print("loaded", context.model_name)
        return None
    print("a line", len(data), flush=True)
    print("no end of line", end="", flush=True)
    sys.stderr.write("to the error output\n")
    return ["OK"] * len(data)
