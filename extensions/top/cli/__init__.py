"""`headrace top`: samples /metrics, computes rates, and shows them on a terminal.

Start with screen.py; view.py makes the content, and layout.py draws it.
"""
