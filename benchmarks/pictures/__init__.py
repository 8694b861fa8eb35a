"""Pictures of a deployment under load, for the documentation: the dashboard and `headrace top`."""
