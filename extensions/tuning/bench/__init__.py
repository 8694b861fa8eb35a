"""Measures a running server over HTTP: load, latency, throughput, and whether an objective is met.

Start with measurement.py, the document that every part reads or writes, and measure.py, the calls
that make it. May import the client and what is below it; it runs no model, starts no server and
imports no torch.

docs/architecture/tuning.md has the design.
"""
