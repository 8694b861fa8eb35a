"""The scripts of files and batches."""
