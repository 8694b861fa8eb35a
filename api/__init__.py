"""The HTTP API. A job goes from routes through submission to headrace.queue.

Start with app.py and routes/. May import headrace; never torch, celery, workers or handlers.
"""
