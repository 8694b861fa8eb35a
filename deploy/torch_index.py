"""Print the options with which pip finds PyTorch, for `make setup` and `make demo`.

Usage: torch_index.py URL, with the URL of PyTorch's index of wheels without CUDA. The options are
empty if a GPU is here, if pip has an index of its own, or if that index cannot be reached: pip
would try it again for each package, for minutes.
"""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from types import FrameType

#: Seconds that a connection may take, and the whole look-up with the name's resolution.
CONNECT_S = 3
LOOK_UP_S = 8


def main(url: str) -> None:
    """Print the options, and on standard error what the user should know."""
    if not url or has_gpu() or pip_has_index():
        return
    if problem := why_unreachable(url):
        print(
            f"make: PyTorch's index {url} cannot be reached ({problem}). Installing PyTorch from "
            "pip's own index, which may bring 3 GB of CUDA libraries; `make TORCH_INDEX=` skips "
            "this look-up",
            file=sys.stderr,
        )
    else:
        print(f"--extra-index-url {url}")


def has_gpu() -> bool:
    """Return whether nvidia-smi lists a GPU."""
    try:
        return (
            subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def pip_has_index() -> bool:
    """Return whether pip is configured with an index or a folder of wheels besides PyPI."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return any(f"{key}=" in listed for key in ("find-links", "index-url"))


def why_unreachable(url: str) -> str:
    """Return why an index cannot be reached, after some seconds at most; "" if it can."""
    signal.signal(signal.SIGALRM, _time_up)
    signal.alarm(LOOK_UP_S)
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/torch/", timeout=CONNECT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"status {error.code}" if error.code >= 500 else ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        # pip may have certificates of its own.
        return "" if isinstance(reason, ssl.SSLError) else str(reason)
    finally:
        signal.alarm(0)


def _time_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer within {LOOK_UP_S} s")


if __name__ == "__main__":
    main(sys.argv[1])
