"""`python -m workers APP [OPTIONS]`: starts a Celery worker on an app of this package.

It runs the same command as `celery --quiet -A APP worker [OPTIONS]`. Celery's own program first
imports all of its other commands, Flower's and a prompt, which takes a fifth of the CPU of a start.
"""

from __future__ import annotations

import gc
import os
import sys

from headrace.errors import HeadraceError


def main() -> None:
    """Run the worker with the options of Celery's `worker`, and exit as that does."""
    if len(sys.argv) < 2:
        print("usage: python -m workers APP [OPTIONS]", file=sys.stderr)  # noqa: T201 - for people
        sys.exit(2)
    # Imported modules stay, so collecting garbage among them is wasted time.
    gc.disable()
    from celery.app.utils import find_app
    from celery.bin.base import CLIContext
    from celery.bin.worker import worker

    try:
        app = find_app(sys.argv[1])
    except HeadraceError as error:
        print(f"headrace: {error.message_with_hint}", file=sys.stderr)  # noqa: T201 - for people
        sys.exit(2)
    gc.freeze()
    gc.enable()
    no_color = bool(os.environ.get("NO_COLOR"))
    context = CLIContext(app=app, no_color=no_color, workdir=None, quiet=True)
    # Options may come from environment variables, under the same names as for Celery's program.
    worker.main(
        sys.argv[2:], prog_name="celery worker", obj=context, auto_envvar_prefix="CELERY_WORKER"
    )


if __name__ == "__main__":
    main()
