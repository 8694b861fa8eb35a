"""headrace.cli.main.queues."""
