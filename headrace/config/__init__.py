"""headrace.config."""
