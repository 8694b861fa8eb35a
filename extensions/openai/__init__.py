"""OpenAI's API: chat, completions, embeddings, responses, files and batches."""
