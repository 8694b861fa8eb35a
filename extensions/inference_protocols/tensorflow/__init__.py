"""TensorFlow Serving's REST, of which KServe V1 is a part: the paths below /v1/models.

Start with calls.py. May import the http, the jobs, the models and the tensors of this extension.
"""
