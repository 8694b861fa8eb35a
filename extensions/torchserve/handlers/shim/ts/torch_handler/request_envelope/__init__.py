"""The envelopes: they translate inputs and results between a protocol and a handler."""
