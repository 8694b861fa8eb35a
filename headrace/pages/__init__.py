"""Writes HTML pages in one file each, with charts and without requests to any server.

Start with page.py. Nothing here knows what a page is about. May import nothing of headrace.
"""
