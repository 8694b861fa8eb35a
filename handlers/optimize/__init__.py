"""Builds the variants of a model's module, checks them against it, and keeps them in a cache.

Start with variants.py. forms.py has what a module takes and returns, check.py the comparison,
cache.py the keys, and the other modules the backends. Runs in the model process; imports torch, and
what a backend needs only where it is used. docs/architecture/tuning.md has the design.
"""
