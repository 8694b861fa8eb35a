"""Files that clients upload and batches write: in parts, in the payload store, until they expire.

`records` says what a file is; `files` reads, lists, writes and deletes them. Knows no HTTP.
"""
