"""The `handler` of a model: its forms, and the check of its file, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.config.extensions import found, handler_extension
from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import ConfigError

#: Files that users give as handlers by mistake.
_ARCHIVES: Final = (".mar", ".zip", ".tar.gz")
_WEIGHTS: Final = (".pt", ".pth", ".pt2", ".bin", ".safetensors", ".onnx")
#: The built-in handlers; each is a module of its name in `handlers/`.
BUILTIN_HANDLERS: Final = (
    "echo",
    "digits",
    "image_classifier",
    "image_segmenter",
    "object_detector",
    "text_classifier",
    "language_model",
    "text_embedding",
    "tensor_model",
)
#: Functions that can make a class without a `class` statement.
_CLASS_MAKERS: Final = {"type", "exec", "globals", "vars", "setattr"}

FORMS: Final = (
    f"write one of {', '.join(BUILTIN_HANDLERS)}, path/to/file.py, path/to/file.py:Class "
    "or package.module:Class"
)


class HandlerKind(StrEnum):
    """Where a handler's code is."""

    BUILTIN = "builtin"
    FILE = "file"
    MODULE = "module"
    EXTENSION = "extension"


@dataclass(frozen=True, slots=True)
class HandlerReference:
    """A parsed `handler`.

    Attributes:
        target: the built-in's name, the file's path as written, or the dotted module.
        name: the class in it; empty for its only class.
        extension: whose handler it is: the text before the first colon; "" for none.
    """

    text: str
    kind: HandlerKind
    target: str
    name: str
    label: str
    extension: str = ""

    def file(self, base_dir: Path) -> Path:
        """Return the file of a FILE handler; a relative path refers to `base_dir`."""
        return (base_dir / Path(self.target).expanduser()).absolute()


def parse_handler(text: str) -> HandlerReference:
    """Parse a `handler`; raise ConfigError if it has none of the forms."""
    label = f"handler {text!r}"
    if extension := handler_extension(text):
        target, name = _split(text.removeprefix(f"{extension}:"))
        return HandlerReference(text, HandlerKind.EXTENSION, target, name, label, extension)
    if text in BUILTIN_HANDLERS:
        return HandlerReference(text, HandlerKind.BUILTIN, text, "", label)
    target, name = _split(text)
    _refuse_other_files(label, target.lower())
    if ":" in text and not (target and _is_dotted(name)):
        raise ConfigError(f"{label}: the class name after the colon is missing", hint=FORMS)
    if _is_path(target):
        return HandlerReference(text, HandlerKind.FILE, target, name, label)
    if not _is_dotted(target) or (not name and "." not in target):
        near = did_you_mean(text, BUILTIN_HANDLERS)
        raise ConfigError(f"{label}: there is no built-in handler with this name{near}", hint=FORMS)
    return HandlerReference(text, HandlerKind.MODULE, target, name, label)


def _refuse_other_files(label: str, target: str) -> None:
    if target.endswith(_ARCHIVES):
        raise ConfigError(
            f"{label}: archives cannot be used",
            hint="set `source` to it, and leave `handler` out; see docs/models.md",
        )
    if target.endswith(_WEIGHTS):
        raise ConfigError(
            f"{label}: this is a file of weights",
            hint="set `weights` to it, and `handler` to the Python file that loads it; a program "
            "(.pt, .pt2, .onnx) needs no handler: set `source` to it",
        )


def parse_factory(text: str, what: str) -> HandlerReference:
    """Parse path/to/file.py:name or package.module:name; raise ConfigError for any other form."""
    target, name = _split(text)
    label = f"{what} {text!r}"
    if not _is_dotted(name) or not (_is_path(target) or _is_dotted(target)):
        raise ConfigError(
            f"{label} is malformed", hint="write path/to/file.py:name or package.module:name"
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


def handler_problem(spec: HandlerReference, base_dir: Path) -> str | None:
    """Return what is wrong with the file of a handler; None if nothing is, or it is no file."""
    if spec.kind is not HandlerKind.FILE:
        return None
    path = spec.file(base_dir)
    return missing(path) or source_problem(path, spec.name)


def missing(path: Path) -> str:
    """Return why a file cannot be found; "" if it exists."""
    try:
        path.stat()
    except FileNotFoundError:
        return f"the file {path} does not exist"
    except (OSError, ValueError) as error:  # a NUL is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        why = f"the file {path} cannot be read: {reason}"
        return f"{why}; correct it, or let this user read it"
    return ""


def source_problem(path: Path, name: str) -> str | None:
    """Return what keeps a file from being a handler, by its text; None if nothing does.

    A name may be bound only when the file runs. So a name that is bound anywhere in the text
    counts, and a file that imports `*` is not checked.

    Args:
        name: the class in it, perhaps with dots; empty for the only one there.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        return f"{path}: {error.strerror}"
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{path}{line}: not valid Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{path}: not valid Python: {error}"
    bound = set(_bound(tree))
    if "*" in bound or "__getattr__" in bound:
        return None
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    wanted = name.partition(".")[0]
    made = _makes_classes(tree)
    if wanted and wanted not in bound and not made:
        near = did_you_mean(wanted, classes)
        return f"{path} has no {wanted}{near or f'; classes in it: {listing(classes)}'}"
    if not wanted and not classes and not made:
        hints = (extension.file_hints for extension in found().extensions.values())
        known = (hint for each in hints for name, hint in each.items() if name in bound)
        return f"{path} {next(known, 'defines no class')}"
    return None


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield all names that the text binds; `*` for a whole module's."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]


def _makes_classes(tree: ast.AST) -> bool:
    """Return whether the text calls a function that can make a class without `class`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Name) and func.id in _CLASS_MAKERS for func in calls)
