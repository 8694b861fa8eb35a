"""workers.background.webhooks."""
