"""What the protocols show of models: metadata, configuration, statistics, and the repository.

Start with repository.py. The values are plain documents in v2's words, from which each protocol
makes its answers. May import the tensors of this extension, and what api.routes may.
"""
