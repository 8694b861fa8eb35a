"""A handler whose own import fails."""

import a_module_that_nobody_has  # noqa: F401


def handle(data, context):
    return ["OK"] * len(data)
