"""What a model process reports while it runs: pieces, progress, spans, stacks and profiles.

Each module has one of these. May import what model_process may.
"""
