"""The models file: models, their options, traffic and pipelines, and what is wrong with them.

Start with catalog.py. May import what config may.
"""
