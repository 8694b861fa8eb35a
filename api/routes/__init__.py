"""The endpoints, one module per resource, and the table of all operations.

Start with table.py. May import services, submission, auth, observability, components and http.
"""
