"""headrace.redis."""
