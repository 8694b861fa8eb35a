"""headrace.runs.engine.engine."""
