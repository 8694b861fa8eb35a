"""The `headrace` command.

Start with main.py, which lists the commands. May import everything in headrace; a command imports
what it needs when it runs.
"""
