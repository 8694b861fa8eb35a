"""`headrace bench --sweep`: runs TorchServe's benchmark suite on a running server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from extensions.tuning.cli.arguments import json_text
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.options import client_of
from headrace.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from extensions.tuning.bench.load.rows import Row
    from extensions.tuning.bench.measurement import Measurement
    from extensions.tuning.bench.reservation import Reservation
    from extensions.tuning.bench.suite import Case
    from headrace import Client

#: How the name of a model begins that an archive of the suite is registered as; TorchServe's name.
_NAME: Final = "benchmark"
_LOAD_S: Final = 600.0
#: A load of so many requests ends by their number, and not by its time.
_DURATION_S: Final = 86_400.0
#: A tenth of the requests are sent first, as TorchServe's suite does.
_WARM_UP: Final = 10


def run_sweep(
    file: Path,
    folder: Path,
    model: str | None,
    inputs: Path | None,
    url: str | None,
    *,
    processes: int,
) -> ExitCode:
    """Measure each case of a suite, and write `ab_report.csv`, `report.md` and `report.html`.

    Args:
        model: a registered model; None registers the archive of each case under a new name, and
            removes it.
        inputs: what to send; None takes that of each case.

    Raises:
        ConfigError: the suite is wrong, or a file cannot be written.
    """
    from extensions.tuning.bench import report
    from extensions.tuning.bench.report.wording import busy_warnings
    from extensions.tuning.bench.serving import NotServed
    from extensions.tuning.bench.suite import read_suite

    cases = read_suite(file)
    if not cases:
        raise ConfigError(f"{file}: the suite has no case", hint="give batch_size and workers")
    results = _Results(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with client_of(url) as client, ExitStack() as stack:
            server = _Server(client, model, file, stack)
            for number, case in enumerate(cases, 1):
                output.message(f"{number} of {len(cases)}: {case.name}")
                try:
                    results.add(case, *_measure(server, case, inputs, url, processes))
                except (InvalidRequest, NotServed) as error:
                    output.message(f"{case.name}: {output.error_text(error)}")
                    results.failed = True
        if not results.found:
            return ExitCode.FAILED
        (folder / "report.md").write_text(report.markdown(results.found))
        (folder / "report.html").write_text(report.html(results.found))
    except OSError as error:
        raise ConfigError(f"{folder} is not written: {error.strerror or error}") from error
    for text in busy_warnings(results.found[:1]):
        output.message(text)
    _print(results.lines)
    output.message(f"see {folder}/ab_report.csv, report.md and report.html")
    return ExitCode.FAILED if results.failed else ExitCode.DONE


class _Results:
    """The results of a sweep, which are written into a folder as each case ends.

    Attributes:
        lines: their lines of `ab_report.csv`.
        failed: a case was not measured, or its load does not count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.found: list[Measurement] = []
        self.lines: list[dict[str, Any]] = []
        self.failed = False

    def add(self, case: Case, measured: Measurement, rows: list[Row]) -> None:
        from extensions.tuning.bench.measurement import with_load_of
        from extensions.tuning.bench.suite import report_row, write_report

        # Later cases would count the load of the earlier ones.
        measured = with_load_of((self.found or [measured])[0], measured)
        self.found.append(measured)
        self.lines.append(report_row(case, measured, rows))
        self.failed = self.failed or bool(measured.loads[-1].refused)
        write_report(self._folder / "ab_report.csv", self.lines)
        (self._folder / f"{case.name}.json").write_text(json_text(measured))


def _print(lines: list[dict[str, Any]]) -> None:
    shown = ("Workers", "Batch size", "TS throughput", "TS latency P50", "TS latency P99")
    output.table(
        [f">{name}" for name in shown], [[str(line[name]) for name in shown] for line in lines]
    )


def _measure(
    server: _Server,
    case: Case,
    inputs: Path | None,
    url: str | None,
    processes: int,
) -> tuple[Measurement, list[Row]]:
    from extensions.tuning.bench.load.scenarios import Scenario
    from extensions.tuning.bench.load.targets import read_inputs, target_for
    from extensions.tuning.bench.measure import LoadOptions, measure
    from headrace.client.http.transport import DEFAULT_URL, ENV_API_KEY, ENV_CA_FILE

    path = inputs or (Path(case.input) if case.input else None)
    if path is None:
        raise InvalidRequest(f"{case.name} has no input", hint="add --input FILE")
    read, described = read_inputs(path, case.content_type)
    rows: list[Row] = []
    with server.serves(case) as name:
        target = target_for(
            "headrace", url or DEFAULT_URL, name, read, described=described,
            api_key=os.environ.get(ENV_API_KEY) or "", ca_file=os.environ.get(ENV_CA_FILE) or "",
        )  # fmt: skip
        first = Scenario(
            kind="closed", concurrency=case.concurrency,
            requests=max(case.concurrency, case.requests // _WARM_UP),
        )  # fmt: skip
        options = LoadOptions(duration_s=_DURATION_S, warm_up_s=0.0, processes=processes)
        measure([first], target, options)
        counted = msgspec.structs.replace(options, on_rows=lambda _, found: rows.extend(found))
        load = msgspec.structs.replace(first, requests=case.requests)
        found = measure([load], target, counted, name=case.name)
    # The name under which an archive was registered means nothing to a reader.
    return (found if server.model else msgspec.structs.replace(found, model=case.model)), rows


class _Server:
    """The server of a sweep. What an earlier sweep or tuning has left there is taken back first."""

    def __init__(self, client: Client, model: str | None, file: Path, stack: ExitStack) -> None:
        from extensions.tuning.bench.reservation import reserved, take_back

        self.model = model
        self._client = client
        self._holder = f"headrace bench --sweep {file.absolute()}"
        self._reservation = None
        if model is not None:
            address = client.session.url
            self._reservation = stack.enter_context(reserved(address, model, self._holder))
        for text in take_back(client, self._reservation):
            output.message(text)

    @contextmanager
    def serves(self, case: Case) -> Iterator[str]:
        """Serve a model with the options of a case, yield its name, and take them back."""
        from extensions.tuning.bench.serving import temporary_model

        if self._reservation is not None and self.model is not None:
            with self._changed(self.model, case, self._reservation):
                yield self.model
            return
        if not case.url:
            raise InvalidRequest(f"{case.name} has no url", hint="name a registered model")
        options = {"source": case.url, **case.options}
        with temporary_model(self._client, _NAME, options, _LOAD_S, self._holder) as name:
            yield name

    @contextmanager
    def _changed(self, model: str, case: Case, reservation: Reservation) -> Iterator[None]:
        from extensions.tuning.bench.serving import apply_options, changed_options

        client = self._client
        before = changed_options(client, model)
        wanted = case.options
        workers = client.model(model).workers or []
        if all(str(one.get("device", "")).startswith(case.device) for one in workers):
            # It runs there, and a server may not allow a change of the device.
            del wanted["device"]
        # None takes a change back.
        known = {key: before.get(key) for key in wanted}
        reservation.changes(known)
        try:
            apply_options(client, model, wanted, _LOAD_S)
            yield
        finally:
            client.set_model_options(model, known)
            reservation.restored()
