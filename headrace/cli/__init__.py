"""The `headrace` command.

Start with main.py; client_commands.py declares the client commands. May import everything in
headrace; a command imports its own modules only when it runs.
"""
