"""Its files over HTTP."""
