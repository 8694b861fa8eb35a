"""What the benchmarks share.

systems.py starts what is measured and reads its CPU time. http_load.py generates load, inputs.py
has the inputs, and tables.py writes the tables. line_process.py runs a bare loop in a process.
"""
