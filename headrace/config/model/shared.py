"""What options of models share with settings and reports, whose readers need no other option."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

#: What a worker has and what a model needs, in the same form: `gpu=a100`.
Label = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}=[A-Za-z0-9_.-]{1,63}$", examples=["gpu=a100"])
]
RETRY_BACKOFF_S: Final = 1.0
RETRY_BACKOFF_MAX_S: Final = 60.0
