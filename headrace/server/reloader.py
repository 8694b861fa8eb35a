"""Applies the models file again, and reloads handlers, while `headrace up` runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from headrace.config.model.catalog import load_catalog
from headrace.config.model.handler_reference import HandlerKind, parse_handler
from headrace.config.settings import Settings
from headrace.errors import BrokerError, ConfigError, Conflict, HeadraceError
from headrace.models.folder import MODEL_FILE
from headrace.models.source import SourceReader
from headrace.registry.catalog import read_declared
from headrace.registry.model import Change, Registry, reload
from headrace.registry.store import registry_at

#: How often the files are looked at.
LOOK_S: Final = 0.3
_BY: Final = "headrace up"


class Reloader:
    """Watches the models file and handlers' files, in a thread; without `watch` only `apply`."""

    def __init__(
        self, settings: Settings, broker_url: str, report: Callable[[str], None], *, watch: bool
    ) -> None:
        self._settings = settings
        self._broker_url = broker_url
        self._report = report
        self._watch = watch
        self._sources = SourceReader(settings, settings.models_file.absolute().parent)
        self._asked = threading.Event()
        self._stamps: dict[Path, int] = {}
        # Changed files that nothing was done about yet.
        self._due: set[Path] = set()
        self._problem = ""

    def note(self) -> None:
        """Note the files as they are, before anything loads them: what changes later is due."""
        self._stamps = self._look()

    def start(self) -> None:
        """Begin to act on changes."""
        threading.Thread(target=self._run, name="headrace-reload", daemon=True).start()

    def apply(self) -> None:
        """Apply the models file soon; a signal handler may call it."""
        self._asked.set()

    def _run(self) -> None:
        while True:
            asked = self._asked.wait(LOOK_S if self._watch or self._due else None)
            self._asked.clear()
            if asked:
                self._due.add(self._settings.models_file)
            try:
                self.turn()
            except Exception as error:  # noqa: BLE001 - the thread serves every later change too
                self._complain(error, again=True)

    def turn(self) -> None:
        """Look at the files once, and act on those that have changed.

        What fails because of Redis, or because of another operator, is due again.
        """
        stamps = self._look()
        self._due |= {path for path in stamps if self._stamps.get(path) != stamps[path]}
        self._stamps = stamps
        due, self._due = self._due, set()
        for paths, act in (
            ({path for path in due if path.suffix != ".py"}, self._apply_file),
            (due - {self._settings.models_file}, self._reload),
        ):
            try:
                if paths:
                    act(paths)
                    self._problem = ""
            except (BrokerError, Conflict) as error:
                self._due |= paths
                self._complain(error, again=True)
            except Exception as error:  # noqa: BLE001 - what else is due must be done
                self._complain(error, again=bool(self._due))

    def _complain(self, error: Exception, *, again: bool) -> None:
        """Report why nothing was reloaded; once if the same is tried again and again."""
        text = f"nothing was reloaded: {_in_words(error)}"
        if text != self._problem or not again:
            self._report(text)
        self._problem = text

    def _apply_file(self, _: set[Path]) -> None:
        declared = read_declared(self._settings.models_file, self._settings)
        with registry_at(self._broker_url) as store:
            changes = store.apply(declared, _BY, prune=True)
        for change in changes:
            self._report(f"model {change.name}: {change.what}")

    def _reload(self, changed: set[Path]) -> None:
        """Load the models again whose handlers are in the folders of these files."""
        broken = [text for path in sorted(changed) if (text := syntax_problem(path))]
        for text in broken:
            self._report(f"{text}; the code that was loaded before serves on")
        if broken:
            return
        with registry_at(self._broker_url) as store:
            registry = store.read()
            changes = self._reloaded(registry, {path.parent for path in changed})
            store.write(registry, changes, _BY)
        for change in changes:
            self._report(f"model {change.name}: its code has changed; the workers load it again")

    def _reloaded(self, registry: Registry, folders: set[Path]) -> list[Change]:
        found = []
        for name, model in registry.models.items():
            versions = [
                version
                for version, one in model.versions.items()
                if self._folder(one.options) in folders
            ]
            if versions:
                found += reload(registry, name, *versions)
        return found

    def _look(self) -> dict[Path, int]:
        """Return the time of each file that matters."""
        if not self._watch:
            return {}
        file = self._settings.models_file
        paths = {file}
        try:
            for options in load_catalog(file).written.values():
                folder = self._folder(options)
                if folder is not None:
                    paths |= set(folder.glob("*.py"))
                if folder is not None and options.get("source"):
                    paths.add(folder / MODEL_FILE)
        except HeadraceError:
            # The file has a mistake, which is reported when it is applied.
            paths |= set(self._stamps)
        stamps = {}
        for path in paths:
            try:
                stamps[path] = path.stat().st_mtime_ns
            except OSError:
                continue  # an editor replaces it
        return stamps

    def _folder(self, options: Mapping[str, object]) -> Path | None:
        """Return the folder of a model's code; None if it has none of its own."""
        if source := options.get("source"):
            return self._sources.folder(str(source))
        try:
            spec = parse_handler(str(options.get("handler", "")))
        except ConfigError:
            return None  # a worker reports it; the other models can be reloaded
        if spec.kind is not HandlerKind.FILE:
            return None
        return spec.file(self._settings.models_file.absolute().parent).parent


def _in_words(error: Exception) -> str:
    if not isinstance(error, HeadraceError):
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return error.message_with_hint


def syntax_problem(path: Path) -> str:
    """Return what is wrong with the syntax of a Python file, with its line; "" if nothing is."""
    if path.suffix != ".py":
        return ""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        # Deeply nested code is too much for the compiler.
        return f"{path}: {str(error) or type(error).__name__}"
    return ""
