"""Commands for queues and dead letters."""
