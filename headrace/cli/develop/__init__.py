"""Commands for people who write a handler: `headrace init` and `headrace try`.

Start with new_project.py. May import cli.shared, models, config and the public handler classes;
`try` loads the model process's executor when it runs.
"""
