"""Published clients of OpenAI's API, unmodified, against a real server.

They have packages of their own: `make clients` installs them.
"""
