"""Commands that make a model faster and show by how much: `optimize`, `bench`, `tune`, `profile`.

One module per command. May import tune, bench, optimize, the client and cli.shared.
"""
