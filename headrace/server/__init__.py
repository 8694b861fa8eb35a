"""headrace.server."""
