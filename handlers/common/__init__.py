"""What several handlers share: images, text, tensors, modules of torch and their explanations.

May import nothing else of handlers.
"""
