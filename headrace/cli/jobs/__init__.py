"""headrace.cli.main.jobs."""
