"""Commands for operators: queues, dead letters, models, API keys and webhooks."""
