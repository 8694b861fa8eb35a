"""headrace.cli.main.admin."""
