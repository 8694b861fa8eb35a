"""Commands that make a model faster and show by how much: `optimize`, `bench`, `tune`, `profile`.

One module per command; arguments.py has what they share. May import tune, bench, optimize, the
client and cli.shared.
"""
