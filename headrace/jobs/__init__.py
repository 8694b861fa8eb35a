"""headrace.jobs.job."""
