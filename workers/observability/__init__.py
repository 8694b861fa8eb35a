"""Spans, the log of batches, and measurements of host and GPU.

Each module stands for one of them. May import models, replicas, protocol and jobs.
"""
