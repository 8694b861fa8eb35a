"""The process that runs batches."""
