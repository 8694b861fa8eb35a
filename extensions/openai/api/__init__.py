"""OpenAI's endpoints: chat, completions, embeddings, responses, models, files and batches.

Start with inference.py. May import what api.routes may, and this extension's schema and batches.
"""
