"""Measures the variants of a model in a process of its own, and shows them as a table and a page.

Start with report.py, the document of such a measurement. It imports no torch: that process does
(workers/model_process/measure.py). docs/architecture/tuning.md has the design.
"""
