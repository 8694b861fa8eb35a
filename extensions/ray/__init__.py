"""Ray Data: a dataset through a model, in Ray's own actors or through the queue.

Start with predict.py. Users import `headrace.ray`.
"""
