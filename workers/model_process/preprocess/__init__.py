"""workers.model_process.preprocess."""
