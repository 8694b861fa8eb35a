"""Commands for jobs: submit, result, jobs, watch and cancel."""
