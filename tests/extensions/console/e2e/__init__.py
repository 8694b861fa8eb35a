"""Its pages in a real browser, on a real deployment."""
