"""`headrace doctor`: its checks, and what they look at.

Start with registry.py, which lists the checks in their order.
"""
