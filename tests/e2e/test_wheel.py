"""The wheel holds one package, and a job runs from it with nothing of the checkout in reach."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.servers.up import (
    ROOT,
    RunningUp,
    clean_environment,
    running_up,
    started,
    write_models,
)
from tests.harness.user_project import MODELS, expected, write_project


def run(*command: str, cwd: Path, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=clean_environment(**variables),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel brings, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile",
        "--target", str(target), str(wheel), cwd=target,
    )  # fmt: skip
    return target


def test_it_holds_one_package_and_all_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace"}
    for folder in ("api", "workers", "handlers", "extensions", "headrace"):
        inside = f"headrace/_server/{folder}" if folder != "headrace" else folder
        sources = {str(p.relative_to(ROOT / folder)) for p in (ROOT / folder).rglob("*.py")}
        assert {f"{inside}/{source}" for source in sources} <= names
    assert {
        str(path.relative_to(ROOT)) for path in (ROOT / "headrace/redis/scripts").rglob("*.lua")
    } <= names
    assert "headrace/_server/handlers/weights/digits.safetensors" in names
    assert "headrace/_server/configs/models.yaml" in names
    assert "headrace/py.typed" in names
    # The documentation page's own files, and the licence of those that are not ours.
    static = {str(p.relative_to(ROOT)) for p in (ROOT / "api/static").rglob("*") if p.is_file()}
    assert "api/static/swagger-ui/LICENSE" in static
    assert {f"headrace/_server/{name}" for name in static} <= names
    assert not [
        name for name in names if "__pycache__" in name or name.startswith("headrace/_server/tests")
    ]


def test_the_license_travels_with_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        licenses = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
        assert len(licenses) == 1
        assert ".dist-info/" in licenses[0]
        assert "Apache License" in archive.read(licenses[0]).decode()


def test_up_runs_a_job_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    up = RunningUp(tmp_path, PYTHONPATH=str(installed))
    # No --models: the file that the wheel brings, with `digits` and its weights.
    up.arguments = ["up", "--state-dir", str(up.state_dir), "--port", str(up.port), "--no-flower"]
    with started(up):
        up.wait_for("Ctrl-C stops everything")
        server = installed / "headrace" / "_server"
        # The worker has the same environment, but Celery may write its title over it.
        environ = Path(f"/proc/{up.record()['pids']['api']}/environ").read_bytes().split(b"\0")
        path = next(v for v in environ if v.startswith(b"PYTHONPATH=")).decode().partition("=")[2]
        assert path.startswith(f"{server}:{installed}")
        origin = run(
            "-P", "-c", "import api, handlers, headrace, workers as w; "
            "print(api.__path__[0], handlers.__path__[0], w.__path__[0], headrace.__path__[0])",
            cwd=tmp_path, PYTHONPATH=path,
        )  # fmt: skip
        expected = [str(server / name) for name in ("api", "handlers", "workers")]
        assert origin.split() == [*expected, str(installed / "headrace")]

        assert up.result_of(up.submit("echo", [1, "ü"])) == [1, "ü"]
        image = (ROOT / "examples/digits/7_0820.png").read_bytes()
        status, job = up.request(
            "POST", "/api/v1/models/digits/jobs", image, **{"Content-Type": "image/png"}
        )
        assert status == 202
        assert up.result_of(job["id"], timeout_s=90)["digit"] == 7
        assert up.stop() == 0


def test_a_command_of_an_extension_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from headrace.cli.main import only; only(['bench'])(['bench', '--help'], "
        "standalone_mode=False); print(sys.modules['extensions.tuning.extension'].__file__)"
    )
    shown = run("-P", "-c", program, cwd=tmp_path, PYTHONPATH=str(installed))
    assert "Measure a running server" in shown
    own = installed / "headrace/_server/extensions/tuning/extension.py"
    assert shown.splitlines()[-1] == str(own)


def test_a_users_modules_win_over_those_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    models = write_models(write_project(tmp_path), MODELS)
    with running_up(tmp_path, models=models, PYTHONPATH=str(installed)) as up:
        jobs = {model: up.submit(model, 5) for model in MODELS}
        for model, job_id in jobs.items():
            assert up.result_of(job_id) == expected(model, 5, PYTHONPATH=str(installed)), model
