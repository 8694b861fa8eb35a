from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

from handlers.loader import load_factory, load_handler
from headrace.config.model.handler_reference import BUILTIN_HANDLERS
from headrace.errors import ConfigError
from headrace.handler import Context, Handler

ONE = """
from headrace import Handler

class Mine(Handler):
    def inference(self, items):
        return items
"""
TWO = ONE + "class Other(Mine):\n    pass\n"
DUCK = """
class Helper:
    pass
class Duck:
    def initialize(self, context): ...
    def preprocess(self, inputs): return inputs
    def inference(self, items): return items
    def postprocess(self, outputs): return outputs
instance = Duck()
"""

pytestmark = pytest.mark.usefixtures("imports_are_undone")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(spec: str, folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_handler(spec, folder)
    assert repr(spec) in caught.value.message
    return caught.value


def name_of(found: object) -> str:
    assert isinstance(found, type)
    return found.__name__


@pytest.mark.parametrize("name", BUILTIN_HANDLERS)
def test_each_built_in_loads_by_its_name(name: str, tmp_path: Path) -> None:
    loaded = load_handler(name, tmp_path)
    assert isinstance(loaded, type)
    assert issubclass(loaded, Handler)
    assert loaded.__module__ == f"handlers.{name}"


def test_a_file_with_one_handler(tmp_path: Path) -> None:
    write(tmp_path, "one_handler.py", ONE)
    assert name_of(load_handler("one_handler.py", tmp_path)) == "Mine"


def test_an_absolute_path_and_a_class(tmp_path: Path) -> None:
    path = write(tmp_path, "two_handlers.py", TWO)
    assert name_of(load_handler(f"{path}:Other", Path("/nowhere"))) == "Other"


def test_a_class_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "some_package/__init__.py", "")
    write(tmp_path, "some_package/inner.py", TWO)
    monkeypatch.syspath_prepend(tmp_path)
    assert name_of(load_handler("some_package.inner:Mine", Path())) == "Mine"
    assert "defines 2 handlers" in refusal("some_package.inner", Path()).message


def test_only_classes_of_the_file_itself_count(tmp_path: Path) -> None:
    write(tmp_path, "imports_another.py", f"from handlers.echo import Echo\n{ONE}")
    assert name_of(load_handler("imports_another.py", tmp_path)) == "Mine"


def test_several_handlers_are_listed(tmp_path: Path) -> None:
    write(tmp_path, "two_handlers.py", TWO)
    error = refusal("two_handlers.py", tmp_path)
    assert "defines 2 handlers" in error.message
    assert error.hint == "name one after a colon: Mine, Other"


def test_no_handler_lists_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, "no_handler.py", "class Model:\n    pass\n")
    error = refusal("no_handler.py", tmp_path)
    assert "defines no subclass of headrace.Handler" in error.message
    assert error.hint == "classes in it: Model"


def test_a_misspelt_class_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "one_handler.py", ONE)
    error = refusal("one_handler.py:Mien", tmp_path)
    assert f"{path} has no Mien; did you mean Mine?" in error.message


def test_any_class_with_the_four_verbs_will_do(tmp_path: Path) -> None:
    write(tmp_path, "duck.py", DUCK)
    assert name_of(load_handler("duck.py", tmp_path)) == "Duck"


def test_an_instance_will_do(tmp_path: Path) -> None:
    write(tmp_path, "duck.py", DUCK)
    assert type(load_handler("duck.py:instance", tmp_path)).__name__ == "Duck"


def test_missing_verbs_are_named(tmp_path: Path) -> None:
    write(tmp_path, "half.py", "class Half:\n    def preprocess(self, inputs): ...\n")
    error = refusal("half.py:Half", tmp_path)
    assert error.message.endswith("Half has no initialize, inference, postprocess")


def test_a_relative_import_is_told_the_other_way(tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "")
    write(tmp_path, "relative.py", f"from . import helper\n{ONE}")
    assert "import helper" in refusal("relative.py", tmp_path).hint


def test_a_missing_file_and_module(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/gone.py" in refusal("gone.py", tmp_path).message
    assert "No module named 'gone'" in refusal("gone.module:Class", tmp_path).message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import surely_not_installed\n", ModuleNotFoundError),
        ("def broken(:\n", SyntaxError),
        ("import sys\nsys.exit('bye')\n", SystemExit),
        ("def fail():\n    raise RuntimeError('my own words')\nfail()\n", RuntimeError),
    ],
)
def test_a_failed_import_keeps_its_own_traceback(
    tmp_path: Path, text: str, kind: type[BaseException]
) -> None:
    path = write(tmp_path, "fails.py", text)
    error = refusal("fails.py", tmp_path)
    assert kind.__name__ in error.message
    assert isinstance(error.__cause__, kind)
    shown = "".join(traceback.format_exception(error))
    assert str(path) in shown
    assert "fails" not in sys.modules


def test_siblings_are_found_and_share_the_handlers_module(tmp_path: Path) -> None:
    write(tmp_path, "sibling_helper.py", "WORD = 'helped'\ndef cls():\n    import uses_sibling\n"
          "    return uses_sibling.Mine\n")  # fmt: skip
    write(
        tmp_path, "uses_sibling.py", f"import sibling_helper\n{ONE}    word = sibling_helper.WORD\n"
    )
    loaded = load_handler("uses_sibling.py", tmp_path)
    assert loaded.word == "helped"  # type: ignore[union-attr]
    assert sys.modules["sibling_helper"].cls() is loaded
    assert sys.path[0] == str(tmp_path)


@pytest.mark.parametrize("name", ["json.py", "handlers.py", "my-handler.py", "v1.2.py"])
def test_a_files_name_may_be_taken_or_be_no_module_name(tmp_path: Path, name: str) -> None:
    before = sys.modules["json"]
    write(tmp_path, name, ONE)
    assert name_of(load_handler(name, tmp_path)) == "Mine"
    assert sys.modules["json"] is before


def test_files_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(tmp_path, f"f{number}/same_name.py", ONE + f"    number = {number}\n")
    loaded = [load_handler(f"f{number}/same_name.py", tmp_path) for number in (1, 2, 3)]
    assert [cls.number for cls in loaded] == [1, 2, 3]  # type: ignore[union-attr]


def test_a_factory_is_found_in_a_file_or_a_module(tmp_path: Path) -> None:
    write(tmp_path, "factory.py", "def build(n=1):\n    return n\nVALUE = 3\n")
    assert load_factory("factory.py:build", tmp_path, what="options.model")(n=5) == 5
    assert load_factory("headrace:Handler", tmp_path, what="options.model") is Handler


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("factory.py", "options.model 'factory.py' is malformed"),
        ("factory.py:gone", "has no gone"),
        ("factory.py:VALUE", "the int of that name is not callable"),
    ],
)
def test_a_factory_that_is_none(tmp_path: Path, spec: str, expected: str) -> None:
    write(tmp_path, "factory.py", "VALUE = 3\n")
    with pytest.raises(ConfigError) as caught:
        load_factory(spec, tmp_path, what="options.model")
    assert expected in caught.value.message


def test_echo_gives_back_what_it_gets(tmp_path: Path) -> None:
    loaded = load_handler("echo", tmp_path)
    handler = loaded() if isinstance(loaded, type) else loaded
    handler.initialize(Context("echo", "1.0", "cpu", tmp_path))
    inputs: list[object] = [{"a": []}, b"bytes", None, 12345678901234567890]
    assert handler.postprocess(handler.inference(handler.preprocess(inputs))) == inputs


NEARLY = (
    "from headrace import Handler\nclass Mine(Handler):\n    def {}(self, items): return items\n"
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("inferense", "inference"), ("pre_process", "preprocess"), ("Postprocess", "postprocess"),
     ("initialise", "initialize")],
)  # fmt: skip
def test_a_misspelt_verb_is_named_with_the_right_one(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / "near.py").write_text(NEARLY.format(name))
    with pytest.raises(ConfigError, match=f"has a method {name}, which is never called") as found:
        load_handler("near.py", tmp_path)
    assert found.value.hint == f"did you mean {meant}?"


def test_other_methods_may_have_similar_names(tmp_path: Path) -> None:
    more = "    def preprocess_image(self, image): return image\n    def infer(self): return 1\n"
    more += "    def _postprocess(self, item): return item\n    initialized = False\n"
    (tmp_path / "fine.py").write_text(NEARLY.format("inference") + more)
    assert load_handler("fine.py", tmp_path)


def test_an_instance_may_have_a_verb_of_its_own(tmp_path: Path) -> None:
    made = "from headrace import Handler\nmine = Handler()\nmine.inference = lambda items: items\n"
    (tmp_path / "made.py").write_text(made)
    assert load_handler("made.py:mine", tmp_path)


def test_a_class_that_does_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from headrace import Handler\nclass Mine(Handler): pass\n")
    with pytest.raises(ConfigError, match="defines none of preprocess, inference, postprocess"):
        load_handler("empty.py", tmp_path)


@pytest.mark.parametrize(
    "verb", ["initialize", "preprocess", "inference", "postprocess", "example_input", "step"]
)
@pytest.mark.parametrize("kind", ["Handler", "Generator"])
def test_a_coroutine_is_refused_at_the_load(tmp_path: Path, verb: str, kind: str) -> None:
    (tmp_path / "later.py").write_text(
        f"from headrace import {kind}\n\nclass Mine({kind}):\n"
        "    def inference(self, items): return items\n"
        f"    async def {verb}(self, *values): return values[0]\n"
    )
    with pytest.raises(ConfigError, match=f"defines {verb} with async def") as found:
        load_handler("later.py", tmp_path)
    assert "asyncio.run" in found.value.hint
