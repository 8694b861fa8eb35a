"""What the operator writes: settings, the models file, pipelines and handler references.

Start with settings.py and model/catalog.py. May import webhooks, handler, jobs, redis and errors.
"""
