"""Triton's protocol, compared with the native route."""
