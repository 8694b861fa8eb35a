"""HTTP mechanics: messages, bodies, multipart, ranges, problems, uvicorn.

Start with messages.py. Independent of jobs and Redis.
"""
