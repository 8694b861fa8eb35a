"""The commands that measure, optimize, profile and tune models."""
