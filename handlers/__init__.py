"""The built-in handlers, and the loader that finds any handler; for model processes only."""
