"""What the `handler` of a model may say, read without importing anything."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.config.suggestions import did_you_mean
from headrace.errors import ConfigError

#: Files that people take for handlers.
_ARCHIVES: Final = (".mar", ".zip", ".tar.gz")
_WEIGHTS: Final = (".pt", ".pth", ".bin", ".safetensors", ".onnx")
#: Handlers that come with Headrace; each is a module of its name in `handlers/`.
BUILTIN_HANDLERS: Final = ("echo", "digits", "image_classifier")

FORMS: Final = (
    f"write one of {', '.join(BUILTIN_HANDLERS)}, path/to/file.py, path/to/file.py:Class "
    "or package.module:Class"
)


class HandlerKind(StrEnum):
    """Where a handler's code is found."""

    BUILTIN = "builtin"
    FILE = "file"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class HandlerReference:
    """A `handler` taken apart.

    Attributes:
        text: as the models file has it.
        kind: where the code is found.
        target: the built-in's name, the file's path as written, or the dotted module.
        name: the class in it; empty for the only one there.
        label: what to call it in messages.
    """

    text: str
    kind: HandlerKind
    target: str
    name: str
    label: str

    def file(self, base_dir: Path) -> Path:
        """The file of a FILE handler; a relative path is taken from `base_dir`."""
        return (base_dir / Path(self.target).expanduser()).absolute()


def parse_handler(text: str) -> HandlerReference:
    """Take a `handler` apart.

    Raises:
        ConfigError: it has none of the forms.
    """
    label = f"handler {text!r}"
    if text in BUILTIN_HANDLERS:
        return HandlerReference(text, HandlerKind.BUILTIN, text, "", label)
    target, name = _split(text)
    _refuse_other_files(label, target.lower())
    if ":" in text and not (target and _is_dotted(name)):
        raise ConfigError(f"{label}: no class name after the colon", hint=FORMS)
    if _is_path(target):
        return HandlerReference(text, HandlerKind.FILE, target, name, label)
    if not _is_dotted(target) or (not name and "." not in target):
        near = did_you_mean(text, BUILTIN_HANDLERS)
        raise ConfigError(f"{label}: no built-in handler of that name{near}", hint=FORMS)
    return HandlerReference(text, HandlerKind.MODULE, target, name, label)


def _refuse_other_files(label: str, target: str) -> None:
    if target.endswith(_ARCHIVES):
        raise ConfigError(
            f"{label}: archives are not read",
            hint="unpack it, and name the Python file in it; docs/torchserve.md says how a "
            "TorchServe model moves",
        )
    if target.endswith(_WEIGHTS):
        raise ConfigError(
            f"{label}: that is a file of weights",
            hint="name it as `weights`, and as `handler` the Python file that loads it",
        )


def parse_factory(text: str, what: str) -> HandlerReference:
    """Take a name inside a file or module apart: path/to/file.py:name or package.module:name.

    Args:
        text: the name.
        what: what to call it in messages.

    Raises:
        ConfigError: it has neither form.
    """
    target, name = _split(text)
    label = f"{what} {text!r}"
    if not _is_dotted(name) or not (_is_path(target) or _is_dotted(target)):
        raise ConfigError(
            f"{label} cannot be read", hint="write path/to/file.py:name or package.module:name"
        )
    kind = HandlerKind.FILE if _is_path(target) else HandlerKind.MODULE
    return HandlerReference(text, kind, target, name, label)


def _split(text: str) -> tuple[str, str]:
    target, colon, name = text.rpartition(":")
    return (target, name) if colon else (text, "")


def _is_path(target: str) -> bool:
    return target.endswith(".py") or "/" in target


def _is_dotted(text: str) -> bool:
    return bool(text) and all(part.isidentifier() for part in text.split("."))
