"""`headrace top`: samples /metrics, computes rates, and shows them on a terminal.

Start with view.py.
"""
