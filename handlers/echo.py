"""The handler that answers with its input: what it takes is the price of the queue itself."""

from __future__ import annotations

from headrace.handler import Handler


class Echo(Handler):
    """Every verb passes its argument on, as the base class does. Needs no torch."""
