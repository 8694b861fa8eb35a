"""headrace.cli.main.shared."""
