"""What an operator meets: kills and scrapes; and the load generator of `headrace bench`."""
