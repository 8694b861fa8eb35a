"""HTTP mechanics: messages, bodies, multipart, ranges, problems, uvicorn.

Start with messages.py. Knows no job and no Redis.
"""
