"""The `headrace` command.

Start with main.py; app.py declares the client commands. May import every other room of headrace;
a command imports its own modules only when it runs.
"""
