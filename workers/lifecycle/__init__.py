"""Which models and replicas a worker has: loads, scales, hands over and retires them.

Start with reconciler.py, then model_updates.py and replica_manager.py. May import canvas, leases,
observability, scheduling, models, replicas, protocol, jobs and threads.
"""
