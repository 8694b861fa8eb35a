"""`headrace top`: samples of /metrics, the rates between them, and a screen that shows them.

Start with view.py.
"""
