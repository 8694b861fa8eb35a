"""Spans, reports, and measurements of host and GPU.

Each module has one of these. May import models, replicas, protocol and jobs.
"""
