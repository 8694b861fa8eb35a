"""Arguments and options that several client commands have."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.commands.completion import complete_model

LIMIT: Final = 20

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="HEADRACE_URL", show_envvar=False, metavar="URL",
        help="The server; HEADRACE_URL names it too [http://127.0.0.1:8080].",
    ),
]  # fmt: skip
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one value a line, and nothing else.")
]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until the jobs have ended.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS",
        help="Wait for so long in all, and no longer; implies --wait [without end].",
    ),
]  # fmt: skip
IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID", help="The jobs; - reads ids from standard input.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=complete_model)
]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit", min=0, metavar="N", show_default=False,
        help=f"So many at the most; 0 for all that are listed [{LIMIT}].",
    ),
]  # fmt: skip
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nobody is asked.")
]
