"""What runs language models for the handler `language_model`: engines, sampling, text from tokens.

`engine.py` has what an engine does; `continuous.py`, `plain.py` and `vllm.py` are the engines.
"""
