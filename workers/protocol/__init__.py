"""What a worker and its model processes share: frames on a socket, and the phases of a process.

Start with frames.py. Standard library and msgspec only.
"""
