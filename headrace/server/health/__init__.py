"""Whether the components of this host serve, for `headrace health`.

Start with probe.py. Containers run it every few seconds, so each module imports little.
"""
