"""headrace.observability."""
