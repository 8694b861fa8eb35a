"""The extensions that Headrace brings: each adds a surface or a tool, and is one folder.

The core imports none of them, and none imports another; docs/architecture/extensions.md.
"""
