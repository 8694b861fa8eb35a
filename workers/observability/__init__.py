"""Spans, reports, and measurements of host and GPU.

Each module has one of them. May import models, replicas, protocol and jobs.
"""
