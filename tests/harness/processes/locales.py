"""A locale that sorts letters backwards, for servers that compare text as their locale does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "backwards"
CHARACTERS = range(128)


def backwards(folder: Path) -> dict[str, str]:
    """The environment of a process in that locale, which lies in the folder.

    No installed locale does: a machine may have none beside C, and C.UTF-8 compares bytes.
    """
    program = shutil.which("localedef")
    if program is None:  # it is in Debian's libc-bin, so that CI has it
        if os.environ.get("CI"):
            pytest.fail("localedef is not installed")
        pytest.skip("localedef is not installed")
    charmap = ["<code_set_name> ASCII-ONLY", "<escape_char> /", "CHARMAP"]
    charmap += [f"<U{code:04X}> /x{code:02x}" for code in CHARACTERS]
    source = ["LC_COLLATE", "order_start forward"]
    source += [f"<U{code:04X}>" for code in reversed(CHARACTERS)]
    source += ["order_end", "END LC_COLLATE"]
    (folder / "charmap").write_text("\n".join([*charmap, "END CHARMAP", ""]))
    (folder / "source").write_text("\n".join([*source, ""]))
    # With --force it also writes a locale that lacks the other categories, and says so by its code.
    command = [program, "--quiet", "--force", "--no-archive", "-f", "charmap", "-i", "source"]
    subprocess.run([*command, f"./{NAME}"], cwd=folder, check=False, capture_output=True)
    assert (folder / NAME / "LC_COLLATE").exists()
    return {**os.environ, "LOCPATH": str(folder), "LC_ALL": NAME}
