"""Batches over HTTP: files of requests that a runner drives, by OpenAI's conventions.

`records` says what a batch is, `batches` keeps them in Redis; `lines` and `validation` read what
was uploaded; `source` and `sink` are what a run (headrace/runs) reads and writes; `driving` takes
one batch from its validation to its end, and `runner` is the process that does so.
"""
