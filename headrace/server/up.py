"""`headrace up`: all components on one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config.settings import Settings
from headrace.models.catalog import hosted, load_models
from headrace.observability import logs
from headrace.observability.extension import LogFiles
from headrace.redis.compatibility import check_broker
from headrace.redis.url import redact_url
from headrace.server import components, embedded_redis, state_dir
from headrace.server.extension import pages, processes
from headrace.server.gpus import worker_devices
from headrace.server.health.liveness import BACKGROUND
from headrace.server.packages import SERVER_EXTRAS, require_extras
from headrace.server.ports import close_all, http_url, require_free
from headrace.server.reloader import Reloader
from headrace.server.supervisor.console import OWN_NAME, console_for
from headrace.server.supervisor.supervisor import ChildProcess, ChildSpec, Supervisor


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of `headrace up` that are not settings.

    Attributes:
        workers: how many Celery workers; None for one per GPU, or one on a machine without GPUs.
        without: the processes of extensions that do not run.
    """

    workers: int | None = None
    flower: bool = True
    background: bool = True
    without: Collection[str] = ()
    reload: bool = False


class Up:
    """One run of `headrace up`."""

    def __init__(self, settings: Settings, options: UpOptions, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._options = options
        self._environ = environ
        self._record_file = settings.state_dir / state_dir.RECORD_NAME
        self._broker_url = ""
        self._stale: list[str] = []
        self._listeners: list[socket.socket] = []
        # Those that serve without TLS though the settings have a certificate.
        self._plain: list[socket.socket] = []
        self._as_json = components.log_format(settings) == logs.JSON
        self._files = self._log_files()
        self._console = console_for([OWN_NAME], as_json=self._as_json, files=self._files)

    def run(self) -> None:
        """Start everything; return when a signal has stopped it.

        Raises:
            ConfigError: a setting, the models file, a port or the state directory is wrong.
            BrokerError: the Redis of HEADRACE_REDIS_URL cannot be used.
            HeadraceError: a component cannot be started.
        """
        settings, options = self._settings, self._options
        require_extras("up", *SERVER_EXTRAS)
        load_models(settings, needed=hosted(settings))
        if options.flower:
            components.check_flower(
                settings.flower_host,
                self._environ,
                change="HEADRACE_FLOWER_HOST=127.0.0.1, or give --no-flower",
            )
        with state_dir.locked(settings.state_dir) as lock:
            self._stale = state_dir.read_record(settings.state_dir).get("incarnations", [])
            self._take_ports()
            try:
                self._supervise(self._children(lock))
            finally:
                self._close_port()

    def _supervise(self, children: list[ChildSpec]) -> None:
        self._console = console_for(
            [OWN_NAME, *(child.name for child in children)],
            components.HIDDEN_LINES,
            as_json=self._as_json,
            files=self._files,
        )
        reloader = Reloader(
            self._settings, self._broker_url, self._report, watch=self._options.reload
        )
        reloader.note()
        supervisor = Supervisor(
            children,
            self._console,
            on_change=self._write_record,
            on_ready=lambda: self._announce(reloader),
            on_stop=self._close_port,
        )
        try:
            supervisor.run()
        finally:
            self._record_file.unlink(missing_ok=True)
        self._report("stopped; queued jobs are kept")

    def _log_files(self) -> LogFiles | None:
        """Return the files of the log format, if it has any."""
        return components.log_files(self._settings)

    def _close_port(self) -> None:
        """Stop listening: a connection that waits while the workers drain gets no answer."""
        close_all([*self._listeners, *self._plain])

    def _take_ports(self) -> None:
        settings = self._settings
        self._listeners = components.listen_for_api(settings)
        if self._options.flower:
            require_free(
                "Flower",
                settings.flower_host,
                settings.flower_port,
                change="choose another with HEADRACE_FLOWER_PORT, or give --no-flower",
            )

    def _children(self, lock: int) -> list[ChildSpec]:
        settings, options = self._settings, self._options
        children = []
        if settings.redis_url is None:
            server = embedded_redis.prepare(settings.state_dir)
            self._broker_url = server.url
            children.append(components.redis_child(server, lock, self._release_stale))
        else:
            self._broker_url = settings.redis_url
            for warning in check_broker(self._broker_url).warnings():
                self._report(warning)
            self._release_stale()
        environ = components.environment(settings, self._broker_url, self._environ)
        children += components.api_children(settings, environ, self._listeners, self._plain)
        devices = worker_devices(self._environ, options.workers)
        variables = self._worker_environ(environ)
        children += components.worker_children(devices, settings, variables, self._report)
        if options.background:
            children.append(components.background_child(settings, environ, self._report))
        children += [
            components.extension_child(process, settings, environ, self._report)
            for name, process in processes().items()
            if name not in options.without
        ]
        if options.flower:
            children.append(components.flower_child(settings, environ))
        return children

    def _worker_environ(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment of the workers, which model processes get."""
        return environ

    def _release_stale(self) -> None:
        """Release what a killed `headrace up` held; its workers died with it."""
        stale, self._stale = self._stale, []
        for incarnation in stale:
            if incarnation.startswith(f"{BACKGROUND}@"):
                components.release_background_tasks(self._broker_url, incarnation, self._report)
                continue
            process = processes().get(incarnation.rpartition("-")[0])
            if process is not None:
                process.release(self._broker_url, incarnation, self._report)
                continue
            components.release_leases(self._broker_url, incarnation, self._settings, self._report)

    def _urls(self) -> dict[str, str]:
        settings = self._settings
        urls = {
            "api": http_url(settings.host, settings.port, tls=settings.tls),
            "broker": redact_url(self._broker_url),
        }
        if self._options.flower:
            urls["flower"] = http_url(settings.flower_host, settings.flower_port)
        return urls

    def _write_record(self, children: Sequence[ChildProcess]) -> None:
        living = [child for child in children if child.process is not None]
        found = (child.environment.get(components.INCARNATION) for child in living)
        record = {
            "urls": self._urls(),
            "models_file": str(self._settings.models_file.absolute()),
            "pids": {
                OWN_NAME: os.getpid(),
                **{c.spec.name: c.process.pid for c in living if c.process is not None},
            },
            # If this process is killed, the next start releases their leases.
            "incarnations": [*self._stale, *filter(None, found)],
        }
        try:
            state_dir.write_private(self._record_file, json.dumps(record, indent=2) + "\n")
        except OSError as error:
            # A full disk must not stop the service.
            self._report(f"{state_dir.RECORD_NAME} not written: {error.strerror}")

    def _announce(self, reloader: Reloader) -> None:
        settings, options = self._settings, self._options
        urls = self._urls()
        state = components.get_json(settings.host, settings.port, "/ready", tls=settings.tls)
        lines = ["up" if state else "up, but not ready: GET /ready shows why"]
        lines.append(f"  API     {urls['api']}  (documentation: /docs, state: /ready)")
        lines += [f"  {name:7} {urls['api']}{path}" for name, path in pages().items()]
        lines.append(f"  broker  {urls['broker']}")
        if "flower" in urls:
            lines.append(f"  Flower  {urls['flower']}")
        lines.append(f"  models  {_models(state)}, from {settings.models_file}")
        lines.append(f"  state   {settings.state_dir.absolute()}")
        if options.reload:
            lines.append("  reload  a changed handler or models file is loaded at once")
        lines.append("Ctrl-C stops everything; queued jobs are kept")
        reloader.start()
        if not sys.stdout.isatty() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # Of a terminal that was closed, SIGHUP is a request to stop; nohup ignores it.
            signal.signal(signal.SIGHUP, lambda *_: reloader.apply())
        self._report("\n".join(lines))

    def _report(self, text: str) -> None:
        self._console.print(OWN_NAME, text)


def _models(state: Any) -> str:
    """Return the state of each model, from the JSON of `/ready`."""
    models = state.get("models") if isinstance(state, dict) else None
    if not isinstance(models, dict):
        return "unknown"
    return ", ".join(f"{name} {model.get('state')}" for name, model in models.items())
