"""headrace.runs.arrow."""
