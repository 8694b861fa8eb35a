"""The command of the batch runner, and the check of `headrace doctor`."""
