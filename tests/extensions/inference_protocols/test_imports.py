"""The API knows tensors as bytes; numpy is for the model processes of models with tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def imported(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_the_api_imports_no_numpy_for_it() -> None:
    names = imported("from api.extension import operations; operations()")
    assert "extensions.inference_protocols.http.endpoints" in names
    assert not names & {"numpy", "grpc", "extensions.inference_protocols.handlers"}


def test_a_model_without_tensors_imports_nothing_of_it() -> None:
    names = imported("import workers.model_process.__main__")
    assert not {name for name in names if name.startswith("extensions")}
