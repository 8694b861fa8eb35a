"""The version of Headrace, which any module may import."""

__version__ = "0.1.0"
