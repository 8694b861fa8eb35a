"""Commands for API keys, models and webhooks."""
