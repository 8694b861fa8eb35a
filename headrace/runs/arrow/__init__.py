"""Arrow: types, and values from JSON and to JSON."""
