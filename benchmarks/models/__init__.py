"""Models on a CPU: images, the variants of a model, many models, reloads."""
