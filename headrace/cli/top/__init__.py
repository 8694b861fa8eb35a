"""`headrace top`: a live view of queues, models, hosts and devices, from what the API tells.

`sample` reads one answer, `view` makes rates out of two, `layout` draws them to a terminal's size,
and `screen` keeps them there. Two requests a refresh, however many models there are.
"""
