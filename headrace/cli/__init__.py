"""The `headrace` command.

Start with main.py; app.py declares the client commands. May import every other room of headrace;
imports what a command needs only once it runs.
"""
