"""`headrace top`: samples /metrics, computes rates, and shows them on a terminal.

Start with screen.py; view.py has what is shown, and layout.py draws it.
"""
