"""workers.leases."""
