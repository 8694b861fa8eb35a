"""Published clients of KServe and TensorFlow Serving, unmodified, each in a process of its own.

They have packages of their own: `make clients` installs them.
"""
