"""The endpoints, one module per resource, and the table of all operations.

Start with table.py. May import submission, auth, observability, components and http.
"""
