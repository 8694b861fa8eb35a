"""The metrics that handlers report."""
