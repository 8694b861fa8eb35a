"""Offline runs: many inputs through one model into one output, over HTTP. See docs/offline.md.

Three parts with two seams (seams.py): a source gives entries, the engine (engine.py) sends them and
reads what has ended, a sink takes rows. Knows no Redis. What reads and writes a kind of file or
store is a module of its own that registry.py names, so that nothing is imported that is not used.
"""
