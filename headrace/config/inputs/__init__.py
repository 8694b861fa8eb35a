"""What a model accepts: the schema of its input, its parameters, and paths into JSON.

Start with input_schema.py. May import what config may.
"""
