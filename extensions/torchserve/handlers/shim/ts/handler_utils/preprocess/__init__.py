"""Preprocessing of inputs with other packages."""
