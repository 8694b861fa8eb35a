"""What OpenAI's SDK calls: the operations below `/v1/`, and their errors.

Start with part.py.
"""
