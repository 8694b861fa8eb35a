"""Payload stores: where long inputs and results are kept, and until when; `input_ref`.

Start with store.py. May import config, jobs, redis and errors.
"""
