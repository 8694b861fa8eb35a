"""What jobs cost inside Redis: the time of scripts, the memory of a job, and lists of jobs."""
