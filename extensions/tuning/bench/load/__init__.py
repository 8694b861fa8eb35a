"""Makes the load: what is sent, when, by which processes, and what each request took.

Start with plan.py, then generator.py, which sends. It talks HTTP to any server.
"""
