"""Gather what a GPU host without a network needs besides its own torch: `make wheelhouse`.

That is what tests/gpu and benchmarks/gpu import: Headrace's own dependencies of API and worker, the
embedded Redis, transformers and pytest, as wheels for Linux x86-64, at the versions of
constraints.txt. deploy/gpu_host.sh installs them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The file that says which Python the wheels are for.
PYTHON_FILE = "python.txt"
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
#: Flower, as nothing there needs it, and the extra with torch.
LEFT_OUT = ("flower", "headrace")
#: pip takes each name by itself, and not all that is older than the newest.
GLIBC = ("2_5", "2_12", "2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34")
OLD_NAMES = ("manylinux1", "manylinux2010", "manylinux2014")
PLATFORMS = [f"{name}_x86_64" for name in (*OLD_NAMES, *(f"manylinux_{n}" for n in GLIBC))]


def requirements() -> list[str]:
    """What is to be gathered, in pip's words."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for extra in ("api", "worker", "embedded", "generation"):
        wanted += extras[extra]
    wanted += [line for line in extras["dev"] if name_of(line) in TOOLS]
    return [line for line in wanted if name_of(line) not in LEFT_OUT]


def name_of(requirement: str) -> str:
    """The name of the package that a requirement is for."""
    found = re.match(r"[\w.-]+", requirement)
    return found.group(0).lower() if found else ""


def gather(python: str, into: Path) -> None:
    """Download the wheels into an empty folder; pip's own too, as the host may have none.

    Raises:
        subprocess.CalledProcessError: pip has said why.
    """
    shutil.rmtree(into, ignore_errors=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms,
        "-c", str(ROOT / "constraints.txt"), "-d", str(into), "pip", *requirements(),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    (into / PYTHON_FILE).write_text(f"{python}\n", "utf-8")


def main() -> int:
    """Gather, and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.12", help="the host's version, such as 3.12")
    parser.add_argument("--into", type=Path, default=ROOT / "wheelhouse")
    given = parser.parse_args()
    try:
        gather(given.python, given.into)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{given.into} is not complete: pip ended with {error.returncode}\n")
        return 1
    wheels = list(given.into.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    sys.stdout.write(
        f"{given.into}: {len(wheels)} wheels for Python {given.python}, {size:.0f} MiB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
