"""OpenAI's surface, through its own SDK."""
