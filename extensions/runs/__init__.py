"""Offline runs: `headrace run`, `headrace runs`, and the sources and sinks of their files.

Start with registry.py, which lists the kinds; offline.py has `Client.offline`. The engine
is headrace.runs.
"""
