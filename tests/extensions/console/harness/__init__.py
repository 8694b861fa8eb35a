"""A deployment with something to show, and the console in a browser."""
