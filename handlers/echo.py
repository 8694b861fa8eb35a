"""The handler that returns its input. Its time is the cost of the queue itself."""

from __future__ import annotations

from headrace.handler import Handler


class Echo(Handler):
    """Returns each verb's argument, as the base class does. Needs no torch."""
