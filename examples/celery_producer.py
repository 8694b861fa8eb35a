"""A stock Celery producer: submits jobs and reads results without Headrace's code.

    python examples/celery_producer.py redis://127.0.0.1:6379/0 examples/digits/*.png

Needs only celery[redis]. `headrace up` prints the address of its Redis; replace the `***` by the
password in `.headrace/redis.password`. docs/celery.md lists what else a stock client can do.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from celery import Celery, group


def main(redis_url: str, *paths: str) -> None:
    """Send the images as one group and print the digit in each."""
    app = Celery(broker=redis_url, backend=redis_url)
    images = [Path(path).read_bytes() for path in paths]
    jobs = group(
        app.signature(
            "headrace.predict",
            kwargs={
                "model": "digits",
                "input": {
                    "content_type": "image/png",
                    "base64": base64.b64encode(image).decode(),
                },
            },
            queue="headrace.digits",
            priority=3,
        )
        for image in images
    )
    for path, result in zip(paths, jobs.apply_async().get(timeout=60), strict=True):
        print(f"{Path(path).name}: {result['digit']} ({result['probability']:.1%})")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL IMAGE...")
    main(*sys.argv[1:])
