"""The `headrace` command.

Start with main.py, which has the commands of the core and finds those of extensions. May import
everything in headrace; a command imports what it needs when it runs.
"""
