"""`python -m api.openapi FILE`: record the description of the API."""

from __future__ import annotations

import sys
from pathlib import Path

from api.openapi import digest, document, written
from headrace import __version__


def main() -> int:
    """Write the file, and print the digest for CHANGELOG.md."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m api.openapi FILE\n")
        return 2
    described = document(__version__)
    Path(sys.argv[1]).write_text(written(described), encoding="utf-8")
    sys.stdout.write(
        f"{sys.argv[1]} written. Describe in CHANGELOG.md, under Unreleased, what has changed "
        f"for clients, with the words: API description `{digest(described)}`\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
