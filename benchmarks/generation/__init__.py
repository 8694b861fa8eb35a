"""Language models and streams.

output_tokens.py and online_during_batch.py measure a language model, streams.py the streams of any
handler. The other modules are what these compare with, and a handler.
"""
