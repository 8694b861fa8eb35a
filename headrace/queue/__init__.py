"""headrace.queue.job_queue."""
