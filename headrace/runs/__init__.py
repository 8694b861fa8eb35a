"""Offline runs: from a source of inputs to a sink of results, resumable after a kill.

Start with engine.py. interfaces.py has what a source and a sink must do; extensions have
these. columns.py and arrow.py (which needs pyarrow) make inputs of the rows of tables. May import
client, queue, payloads, config, access, jobs, redis and errors.
"""
