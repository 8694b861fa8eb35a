"""Commands for offline runs: `headrace run` and `headrace runs`."""
