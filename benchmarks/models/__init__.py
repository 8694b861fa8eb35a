"""Models on a CPU: images, the variants of a model, many models, reloads.

device_wait.py measures how much of a device's time is used, with the handler of device_handler.py.
"""
