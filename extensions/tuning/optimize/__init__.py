"""The document that compares the variants of a model, as a table and as a page.

Start with report.py, the document. It imports no torch: the process that measures does
(extensions/tuning/workers/measure.py). docs/architecture/tuning.md has the design.
"""
