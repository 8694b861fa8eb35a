"""In a model process: tensors as arrays, and results as tensors. The only room with numpy.

May import the tensors of this extension.
"""
