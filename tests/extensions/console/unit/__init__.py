"""Its files, without a server."""
