"""The commands of `headrace` that speak to a running server, on the client of `headrace.client`."""
