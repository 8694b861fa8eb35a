"""headrace.runs.sinks."""
