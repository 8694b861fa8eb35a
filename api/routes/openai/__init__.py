"""Endpoints by OpenAI's conventions: files and batches."""
