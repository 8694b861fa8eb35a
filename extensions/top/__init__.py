"""The live view of a deployment on a terminal: `headrace top`."""
