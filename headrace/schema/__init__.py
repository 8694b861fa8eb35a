"""The objects of the API as JSON: the API writes them, and the Python client reads them.

Each is one struct with its description. A client ignores members that it does not know, and takes
words that it does not know.
"""
