"""What a model is made of: folders, archives and files, where they come from, where they are kept.

Start with catalog.py, which reads the sources of all models; archive.py unpacks. No code of a model
is imported here. May import payloads, config, webhooks, redis and errors.
"""
