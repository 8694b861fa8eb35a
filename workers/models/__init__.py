"""What a worker holds of each model: its jobs, backlog, payloads and deadlines.

Start with served_model.py. May import batching, replicas, protocol and jobs. Does not use Redis.
"""
