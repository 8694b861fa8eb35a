"""workers.replicas."""
