"""headrace.runs.sources."""
