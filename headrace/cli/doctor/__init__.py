"""`headrace doctor`: looks at everything that a deployment stands on, and says what to do about it.

`finding` has what a check gives, `site` what checks look at, `table` all checks, and `rounds` does
them. Knows no torch and no Celery: where they are to be asked, a process is.
"""
