"""What a job costs from the client to its answer: overhead.py measures it as a whole.

The others measure a part of it, such as a submit, the answer to a waiter or an idle worker.
"""
