"""When batches run, and what a bad input in one costs.

policy.py compares the batching policy with a fixed window, on a real worker. simulated_policy.py
does so without one, and compares it with full knowledge too. peers.py runs closed loops beside
mosec and TorchServe.
"""
