"""The server on which trials run: a `headrace up` of its own, or one that runs already."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import yaml
from typing_extensions import override

from extensions.tuning.bench.reservation import Reservation
from extensions.tuning.bench.serving import NotServed, apply_options, changed_options
from extensions.tuning.tune.space import Candidate
from headrace.client.models import Model
from headrace.client.sync_client import Client
from headrace.config.environment import ENV_URL, server_root
from headrace.config.model.optimize import OPTIMIZED
from headrace.config.settings import ENV_CONFIG, ENV_PREFIX, ENV_REDIS_URL, OTHER_VARIABLES
from headrace.errors import ConfigError, HeadraceError, ServerUnreachable, last_line
from headrace.server.ports import free_port, http_url
from headrace.server.supervisor import exec_child

#: The settings that decide what a trial measures or may load. All others are those of a new
#: deployment: the trials must not share a Redis, a port or a payload store with another one.
_KEPT_SETTINGS: Final = frozenset(
    {
        "allowed_urls", "body_limit_bytes", "device_slots", "inline_limit_bytes",
        "install_requirements", "model_fetch_timeout_s", "model_limit_bytes", "model_store",
        "pin_cores", "timeout_s",
    }
)  # fmt: skip
#: Options of a model that are about other workers, other versions and idle times.
_OF_A_DEPLOYMENT: Final = frozenset({"labels", "load", "idle_unload_s", "traffic"})
_HOST: Final = "127.0.0.1"
_STOP_S: Final = 30.0
_POLL_S: Final = 0.1
_UNSERVED_S: Final = 60.0
#: The prefix of the folder of one server.
_STATE: Final = "state-"
#: The prefix of the models file of the trials.
_OWN_FILE: Final = ".headrace-tune-"


class Deployment(Protocol):
    """Where trials run; a private one is our own, which a trial may start again."""

    url: str
    private: bool

    def use(self, candidate: Candidate) -> Model:
        """Serve the model with these options, and return it when it is ready.

        Raises:
            NotServed: it cannot be served with them.
            ServerUnreachable: the server does not answer.
        """

    def check(self) -> None:
        """Do nothing if the server still runs.

        Raises:
            ServerUnreachable: it does not.
        """

    def close(self) -> None:
        """Leave the server as it was."""


class PrivateDeployment(Deployment):
    """One `headrace up` after the other, each with the options of a candidate.

    Each start is that of a user, so the threads and cores of the model processes are too.

    Args:
        present: its options with their defaults.
        written: its options in the models file.
        models_file: the models file; relative paths refer to its folder.
        folder: the folder of the tuning.
        builds: the folder of the builds of variants.
    """

    def __init__(
        self,
        model: str,
        present: Mapping[str, Any],
        written: Mapping[str, Any],
        models_file: Path,
        folder: Path,
        builds: Path,
        load_timeout_s: float,
        environ: Mapping[str, str],
    ) -> None:
        self._model = model
        self._present = present
        self._written = written
        self._serves: tuple[Any, ...] = ()
        # Paths in the options refer to the folder of the file, so ours must be there too.
        self._models_folder = models_file.absolute().parent
        self._file: _OwnFile | None = None
        self._folder = folder / "server"
        self._builds = builds
        self._timeout_s = load_timeout_s
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self.private = True
        self._state: Path | None = None
        self.url = ""

    @override
    def use(self, candidate: Candidate) -> Model:
        given = {**self._written, **candidate.options}
        wanted = ({**self._present, **given}, candidate.environ)
        running = self._process is not None and self._process.poll() is None
        if running and self._serves == wanted:
            return self._ready()
        self._stop()
        options = {
            key: value
            for key, value in given.items()
            if value is not None and key not in _OF_A_DEPLOYMENT
        }
        if options.get("min_replicas") == 0:  # of a model that is loaded on demand
            del options["min_replicas"]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # A tuning that was killed has left its own; the journal allows one process here.
            for left in self._folder.glob(f"{_STATE}*"):
                shutil.rmtree(left, ignore_errors=True)
            if self._file is None:
                self._file = _OwnFile(self._models_folder)
            self._file.write(yaml.safe_dump({"models": {self._model: options}}))
            self._state = Path(tempfile.mkdtemp(prefix=_STATE, dir=self._folder))
            # A variant is built once, also for the user's own server.
            self._builds.mkdir(parents=True, exist_ok=True)
            (self._state / OPTIMIZED).symlink_to(self._builds.absolute())
        except OSError as error:
            raise ConfigError(
                f"{error.filename or self._models_folder}: cannot be written: {error.strerror}",
                hint="the trials need a file next to the models file, and the folder of --output",
            ) from None
        port = free_port(_HOST)
        self.url = http_url(_HOST, port)
        command = [
            sys.executable, "-m", "headrace", "up", "--state-dir", str(self._state),
            "--port", str(port), "--models", str(self._file.path), "--workers", "1",
            "--no-flower", "--no-background", "--no-runner",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # It must not outlive this process, however that ends.
                [sys.executable, "-I", "-S", str(exec_child.__file__), "--signal", "TERM",
                 "--parent", str(os.getpid()), "--", *command],
                env=self._variables(candidate.environ), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        found = self._ready()
        self._serves = wanted
        return found

    @override
    def check(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            raise ServerUnreachable(f"the server of the trials has ended; see {self._log}")

    @override
    def close(self) -> None:
        try:
            self._stop()
        finally:  # also if the user does not wait for the end of the server
            if self._file is not None:
                self._file.remove()
                self._file = None

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _ready(self) -> Model:
        started, unserved = time.monotonic(), ""
        # The API does not answer at first.
        with Client(self.url, retry_s=0) as client:
            while (waited_s := time.monotonic() - started) < self._timeout_s:
                if self._process is None or self._process.poll() is not None:
                    raise NotServed(f"headrace up has ended: {self._last_lines()}")
                found = None
                with suppress(HeadraceError):
                    found = client.model(self._model)
                if found is not None:
                    unserved = found.unserved or ""
                    if found.state == "failed":
                        raise NotServed(last_line(found.error or ""))
                    wanted = found.replicas if isinstance(found.replicas, int) else 1
                    if found.ready_replicas >= max(1, wanted):
                        return found
                # Before the worker runs no worker can host the model.
                if unserved and waited_s > _UNSERVED_S:
                    raise NotServed(unserved)
                time.sleep(_POLL_S)
        raise NotServed(f"it is not loaded after {self._timeout_s:g} s; see {self._log}")

    def _variables(self, own: Mapping[str, str]) -> dict[str, str]:
        kept = {ENV_PREFIX + name.upper() for name in _KEPT_SETTINGS}
        kept |= OTHER_VARIABLES - {ENV_CONFIG, ENV_URL, "HEADRACE_API_KEY"}
        found = {
            key: value
            for key, value in self._environ.items()
            if key in kept or not (key.startswith(ENV_PREFIX) or key == ENV_REDIS_URL)
        }
        path = [str(server_root()), *found.get("PYTHONPATH", "").split(os.pathsep)]
        return {
            **found,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, path))),
            "HEADRACE_DRAIN_TIMEOUT_S": "1",
            **own,
        }

    def _stop(self) -> None:
        process, self._process, self._serves = self._process, None, ()
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._state is not None:
            shutil.rmtree(self._state, ignore_errors=True)
            self._state = None

    def _last_lines(self) -> str:
        try:
            return last_line(self._log.read_bytes()[-4000:].decode(errors="replace"))
        except OSError:
            return f"see {self._log}"


class _OwnFile:
    """A models file of this process, next to that of the user.

    It is locked, and the lock ends with the process. So the next tuning removes the file of one
    that was killed.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        for left in folder.glob(f"{_OWN_FILE}*.yaml"):
            with suppress(OSError), left.open("rb") as file:  # OSError: its process runs
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
        while True:
            descriptor, name = tempfile.mkstemp(".yaml", _OWN_FILE, folder)
            self.path = Path(name)
            self._lock = os.fdopen(descriptor, "rb")
            with suppress(OSError):  # a disk without locks, on which no process removes it
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():  # another process may have removed it before the lock
                return
            self._lock.close()

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._lock.close()


class RunningServer(Deployment):
    """A server that runs already; each trial sets the options of the model in its registry."""

    def __init__(
        self, url: str, model: str, load_timeout_s: float, reservation: Reservation
    ) -> None:
        self._reservation = reservation
        self._client = Client(url)
        self._model = model
        self._timeout_s = load_timeout_s
        self.url = self._client.session.url
        self._before = changed_options(self._client, model)
        self._touched: set[str] = set()
        self.private = False

    @override
    def use(self, candidate: Candidate) -> Model:
        # What an earlier trial has set and this one does not returns to what it was.
        options = {key: self._before.get(key) for key in self._touched}
        if candidate.options.keys() - self._touched:
            self._touched |= candidate.options.keys()
            self._reservation.changes({key: self._before.get(key) for key in sorted(self._touched)})
        wanted = {**options, **candidate.options}
        if wanted:
            self._set(wanted)
        return self._client.model(self._model)

    @override
    def check(self) -> None:
        self._client.model(self._model)

    @override
    def close(self) -> None:
        try:
            if self._touched:
                self._set({key: self._before.get(key) for key in self._touched})
                self._reservation.restored()
        finally:
            self._client.close()

    def _set(self, options: dict[str, Any]) -> None:
        apply_options(self._client, self._model, options, self._timeout_s)
