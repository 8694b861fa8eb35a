"""`headrace init`: writes a handler, a models file and a test to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

_HANDLER: Final = '''\
"""A handler: how one model reads its inputs, runs a batch and returns the results."""

from headrace import Handler, errors


class MyModel(Handler):
    """Replace the lines marked "your model" by your own."""

    def initialize(self, context):
        """Load the model, once per model process."""
        super().initialize(context)
        # Your model: load it here, for example
        #     self.model = torch.load(context.weights).to(context.device).eval()
        self.model = str.upper

    def preprocess(self, inputs):
        """Return one item per input. An error as an item fails only that input."""
        return [x if isinstance(x, str) else errors.InputError("send text") for x in inputs]

    def inference(self, items):
        """Return one output per item of the batch."""
        # Your model: run it once for the whole batch.
        return [self.model(item) for item in items]

    def postprocess(self, outputs):
        """Return one result per output: a JSON value, bytes or a headrace.Response."""
        return [{"text": output} for output in outputs]
'''
_MODELS: Final = """\
# The models that this server has. docs/configuration.md lists all keys.
models:
  my_model:
    handler: handler.py     # relative to this file
    max_batch_size: 32
    max_batch_delay_ms: 5
"""
_TEST: Final = '''\
"""Tests of the handler. They need no server: run `pytest`."""

from pathlib import Path

from handler import MyModel
from headrace import Context, errors


def test_a_batch_gets_one_result_per_good_input():
    handler = MyModel()
    handler.initialize(Context("my_model", "1.0", "cpu", model_dir=Path()))

    items = handler.preprocess(["two words", 7])
    good = [item for item in items if not isinstance(item, Exception)]

    assert isinstance(items[1], errors.InputError)
    assert handler.postprocess(handler.inference(good)) == [{"text": "TWO WORDS"}]
'''
FILES: Final = {"handler.py": _HANDLER, "models.yaml": _MODELS, "test_handler.py": _TEST}


def write_project(folder: Path) -> list[Path]:
    """Write the files of a new project, and return their paths. Creates the folder if needed.

    Raises:
        ConfigError: one of the files exists, or the folder cannot be written. Nothing is changed
            if a file exists.
    """
    paths = [folder / name for name in FILES]
    existing = [str(path) for path in paths if path.exists()]
    if existing:
        raise ConfigError(
            f"these files exist and are not overwritten: {', '.join(existing)}",
            hint="choose another folder: headrace init FOLDER",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.write_text(FILES[path.name])
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", hint="choose another folder") from error
    return paths
