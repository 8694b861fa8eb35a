"""What members of several objects have in common."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

from headrace.jobs.job import iso

# A word of the enum in its description. A client takes the words of a newer server too.
if TYPE_CHECKING:
    Word = str
    WordOrNull = str | None
else:
    Word = WordOrNull = Any

#: A time, which `time_of` writes.
Moment = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
#: Writes null where its default would be left out.
NULL: Final[Any] = msgspec.Raw(b"null")
#: Writes microseconds since 1970 as a text, which a client reads as a datetime.
time_of: Final = cast("Callable[[int], datetime]", iso)
