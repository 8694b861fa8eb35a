"""Benchmarks: each a command, each against a baseline in the same run."""
