"""headrace.server.supervisor."""
