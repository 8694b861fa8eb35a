"""`python -m workers APP [OPTIONS]`: a Celery worker on one of the apps here.

It is `celery --quiet -A APP worker [OPTIONS]`, by the same command of Celery's own. That program
first imports all of Celery's other commands, Flower's and a prompt: a fifth of the CPU of a start.
"""

from __future__ import annotations

import gc
import os
import sys

from headrace.errors import HeadraceError


def main() -> None:
    """Run the worker, whose options are those of Celery's `worker`, and exit as that does."""
    if len(sys.argv) < 2:
        print("usage: python -m workers APP [OPTIONS]", file=sys.stderr)  # noqa: T201 - for people
        sys.exit(2)
    # What is imported stays: to look through it for garbage is in vain.
    gc.disable()
    from celery.app.utils import find_app
    from celery.bin.base import CLIContext
    from celery.bin.worker import worker

    try:
        app = find_app(sys.argv[1])
    except HeadraceError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"headrace: {error.message}{hint}", file=sys.stderr)  # noqa: T201 - for people
        sys.exit(2)
    gc.freeze()
    gc.enable()
    no_color = bool(os.environ.get("NO_COLOR"))
    context = CLIContext(app=app, no_color=no_color, workdir=None, quiet=True)
    # Environment variables give options under the names that Celery's program has for them.
    worker.main(
        sys.argv[2:], prog_name="celery worker", obj=context, auto_envvar_prefix="CELERY_WORKER"
    )


if __name__ == "__main__":
    main()
