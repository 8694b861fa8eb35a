"""TorchServe's URLs that register, describe, scale and remove models.

Start with endpoints.py. May import what the folder above may.
"""
