"""workers.model_process.protocol."""
