"""Writes HTML pages in one file each, with charts and without requests to any server.

Start with page.py. The code here does not depend on the subject of a page. May import nothing of
headrace.
"""
