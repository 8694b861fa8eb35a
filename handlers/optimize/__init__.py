"""Builds the variants of a model's module, checks their outputs, and keeps them in a cache.

One module per backend. Runs in the model process; imports torch and what a backend needs.
docs/architecture/tuning.md has the design.
"""
