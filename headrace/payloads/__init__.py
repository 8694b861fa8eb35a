"""Payloads: inputs and results that are too long for a message, and the operator's own files.

`base` says what a store does; `redis`, `file` and `s3` are the three; `index` keeps the account of
what lies there in Redis; `origin` reads the files and objects that clients name as `input_ref`.
"""
