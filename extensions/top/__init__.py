"""The live view of a deployment: `headrace top`."""
