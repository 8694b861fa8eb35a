"""`headrace doctor`: the checks of a deployment.

Start with command.py, which lists the checks in the order of the report.
"""
