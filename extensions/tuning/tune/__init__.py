"""Finds the options with which a model serves the highest rate within an objective.

May import bench, optimize and what is below them. docs/architecture/tuning.md has the design.
"""
