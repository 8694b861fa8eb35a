"""The base classes of handlers of an older interface."""
