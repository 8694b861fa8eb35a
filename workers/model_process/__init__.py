"""workers.model_process."""
