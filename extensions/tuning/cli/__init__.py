"""Commands that make a model faster and show by how much: `optimize`, `bench`, `tune`, `profile`.

One module per command; arguments.py has what they share. May import the rest of this
extension, the client and headrace.cli.shared.
"""
