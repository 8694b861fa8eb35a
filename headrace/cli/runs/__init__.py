"""headrace.cli.main.runs."""
