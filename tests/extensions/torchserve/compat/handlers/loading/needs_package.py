"""A handler that needs a package of its archive's requirements."""

import compat_needed


def handle(data, context):
    return None if data is None else [compat_needed.WORD] * len(data)
