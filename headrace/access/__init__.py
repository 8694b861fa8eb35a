"""headrace.access.api_key."""
