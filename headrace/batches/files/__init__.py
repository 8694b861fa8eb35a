"""Files that clients upload and batches write: their records, and their bytes in parts.

Start with store.py. The bytes are kept by headrace.payloads.
"""
