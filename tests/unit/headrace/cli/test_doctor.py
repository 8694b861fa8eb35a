"""`headrace doctor` on files, devices and this host, each broken; and how its rounds go."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from headrace.cli.doctor import command, configuration, host
from headrace.cli.doctor.check import (
    Check,
    CheckResult,
    CheckRun,
    fail,
    ok,
    run_checks,
    skip,
    warn,
    worst,
)
from headrace.cli.doctor.command import exit_code_of
from headrace.cli.doctor.deployment import CheckSkipped, Deployment
from headrace.cli.shared.exit_codes import ExitCode
from headrace.server.ports import free_port
from tests.harness.clients.doctor import (
    breaks,
    fake_smi,
    fake_torch,
    found,
    look,
    site,
    verdict,
)
from tests.harness.extensions import installed
from tests.harness.servers.certificates import Authority
from tests.harness.workers.worker import write_models


def check(
    look_: Callable[[Deployment], CheckResult], *, limit_s: float = 30, background: bool = False
) -> Check:
    return Check("one", "Group", look_, limit_s, background)


def raising(error: Exception) -> Check:
    def look_(_: Deployment) -> CheckResult:
        raise error

    return check(look_)


def test_a_check_that_raises_or_hangs_is_a_line_and_ends_no_other() -> None:
    held = threading.Event()

    def hangs(_: Deployment) -> CheckResult:
        held.wait(60)
        return ok("too late")

    with site() as here:
        verdict(look(here, raising(CheckSkipped("nothing there"))), "skip", "nothing there")
        verdict(look(here, raising(NoPermissionError("no right"))), "skip", "lacks permission")
        results = list(
            run_checks(
                here,
                [
                    check(hangs, limit_s=0.05),
                    raising(ZeroDivisionError("by zero")),
                    check(lambda _: ok("well")),
                ],
            )
        )
    held.set()
    hung, broken, well = (run.result for run in results)
    verdict(hung, "fail", "did not end within 0.05 s")
    assert broken.verdict == "fail"
    assert "ZeroDivisionError: by zero" in broken.sentence
    assert well == ok("well")


def test_what_runs_beside_is_begun_first_and_told_last() -> None:
    begun = threading.Event()
    waits = check(lambda _: ok(str(begun.wait(30))))

    def beside(_: Deployment) -> CheckResult:
        begun.set()
        return ok("beside")

    with site() as here:
        told = [
            run.result.sentence for run in run_checks(here, [waits, check(beside, background=True)])
        ]
    assert told == ["True", "beside"]


def test_several_findings_become_the_worst_of_them() -> None:
    both = worst([warn("a", "x"), fail("b", "y", ExitCode.USAGE), fail("c", "y"), ok("d")])
    assert (both.sentence, both.hint, both.code) == ("b; c", "y", ExitCode.USAGE)
    assert worst([ok("d")]) == ok("d")


def test_the_exit_code_is_the_highest_of_what_failed() -> None:
    def code(*findings: CheckResult, strict: bool = False) -> int:
        results = [CheckRun(check(lambda _: ok("")), finding, 0.0) for finding in findings]
        return exit_code_of(results, strict=strict)

    assert code(ok(""), skip(""), warn("", "")) == 0
    assert code(ok(""), warn("", ""), strict=True) == 1
    assert code(fail("", ""), fail("", "", ExitCode.UNREACHABLE), fail("", "", ExitCode.USAGE)) == 3


def test_the_report_in_lines_without_colours_for_who_reads_it_by_machine(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    checks = (
        Check("first", "One", lambda _: ok("well")),
        Check("second", "One", lambda _: fail("it\x1b[31m\nbroke", "mend it", ExitCode.USAGE)),
        Check("third", "Two", lambda _: warn("soon", "look")),
        Check("fourth", "Two", lambda _: skip("away"), background=True),
    )
    monkeypatch.setattr(command, "CHECKS", checks)
    with installed():
        assert command.examine(None, None, None, strict=False, as_json=False) == ExitCode.USAGE
    shown = capsysbinary.readouterr().out.decode()
    name = len("second")
    assert shown.splitlines() == [
        "One",
        f"  ok    {'first':<{name}}  well",
        f"  fail  {'second':<{name}}  it\\x1b[31m broke",
        f"{'':{name + 10}}-> mend it",
        "",
        "Two",
        f"  warn  {'third':<{name}}  soon",
        f"{'':{name + 10}}-> look",
        "",
        "Slow checks",
        f"  skip  {'fourth':<{name}}  away",
        "",
        "4 checks: 1 fail, 1 warn, 1 ok, 1 skip",
    ]


def test_several_findings_of_one_check_are_a_line_each(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    found_ = [
        fail("a", "x"),
        fail("b", "y"),
        fail("c", "y"),
        *(fail(str(n), "z") for n in range(9)),
    ]
    monkeypatch.setattr(command, "CHECKS", (Check("one", "G", lambda _: iter([*found_, ok("d")])),))
    with installed():
        command.examine(None, None, None, strict=False, as_json=False)
    shown = capsysbinary.readouterr().out.decode().splitlines()
    indent = 10 + len("one")
    assert [line[indent:] for line in shown[1:-2]] == [
        "a", "-> x", "b", "c", "-> y", *map(str, range(7)), "-> z", "and 2 more; --json has them",
    ]  # fmt: skip


@breaks("settings", "models-file")
def test_settings_and_models_that_cannot_be_read(tmp_path: Path) -> None:
    wrong = found("settings", HEADRACE_PROT="1", HEADRACE_PORT="many")
    verdict(wrong, "fail", "2 invalid", "HEADRACE_PROT", "HEADRACE_PORT")
    assert wrong.code is ExitCode.USAGE
    verdict(found("models-file", HEADRACE_PORT="many"), "skip", "settings are invalid")
    file = tmp_path / "headrace.yaml"
    file.write_text("port: [1\n")
    verdict(found("settings", HEADRACE_CONFIG=str(file)), "fail", "headrace.yaml")
    models = write_models(tmp_path, echo={"handler": "echo", "replicsa": 1}, b={"handler": "nope"})
    verdict(
        found("models-file", models=models),
        "fail",
        "handler 'nope'",
        "first of 2 mistakes",
        "check-config",
    )
    verdict(found("weights", models=models), "skip", "models file is invalid")


@breaks("handlers")
def test_handlers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(handler: str) -> CheckResult:
        return found("handlers", models=write_models(tmp_path, m={"handler": handler}))

    (tmp_path / "mine.py").write_text("from a import B\nclass Mine: ...\n")
    (tmp_path / "cut.py").write_text("class Mine(:\n")
    verdict(problem("mine.py:Mine"), "ok")
    verdict(problem("mine.py:B"), "ok")
    verdict(problem("mine.py:Yours"), "fail", "has no Yours")
    verdict(problem("cut.py"), "fail", "cut.py, line 1: not valid Python: ")
    verdict(problem("gone.py"), "fail", "gone.py: No such file")
    verdict(problem("headrace.handler:Handler"), "ok")
    verdict(problem("headrace.nowhere:Handler"), "fail", "no module headrace.nowhere")
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "__init__.py").touch()
    (tmp_path / "handlers" / "own.py").write_text("class Own: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    verdict(problem("handlers.own:Own"), "ok")
    verdict(problem("handlers.digits:Digits"), "ok")
    monkeypatch.setitem(configuration.NEEDS, "echo", ("no_such_package",))
    verdict(problem("echo"), "warn", "no_such_package not installed", "headrace[worker,torch]")
    monkeypatch.setitem(configuration.NEEDS, "language_model", ("no_such_package",))
    verdict(problem("language_model"), "warn", "not installed", "headrace[worker,generation]")


@breaks("weights")
def test_weights_that_are_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"

    def problem(name: str = file.name) -> CheckResult:
        models = write_models(tmp_path, m={"handler": "echo", "weights": name})
        return found("weights", models=models)

    verdict(problem(), "fail", "No such file", "every worker needs it")
    file.write_bytes(b"")
    verdict(problem(), "fail", "is empty")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    verdict(problem(), "fail", "git lfs pull")
    file.write_bytes((1000).to_bytes(8, "little") + b"{}")
    verdict(problem(), "fail", "not a complete safetensors")
    file.write_bytes((2).to_bytes(8, "little") + b"{}" + b"x" * 100)
    verdict(problem(), "ok", "1 file")
    (tmp_path / "weights.pt").write_bytes(b"<html>not found</html>")
    verdict(problem("weights.pt"), "fail", "torch.save")
    verdict(found("weights", models=write_models(tmp_path, m={"handler": "echo"})), "skip")


@breaks("exposure")
def test_an_api_that_is_open_to_all() -> None:
    verdict(found("exposure"), "ok", "127.0.0.1")
    bare = found("exposure", HEADRACE_HOST="0.0.0.0", HEADRACE_AUTH="off")
    verdict(bare, "fail", "anybody who can reach 0.0.0.0", "keys create")
    verdict(found("exposure", HEADRACE_HOST="10.0.0.1"), "warn", "not encrypted", "tls_cert_file")


@breaks("env-file")
def test_settings_in_the_env_file_of_compose_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verdict(found("env-file"), "ok", "no .env")
    (tmp_path / "docker-compose.yml").write_text("x: ${HEADRACE_WEBHOOK_SECRETS:-}\n")
    text = "# HEADRACE_AUTH=off\nAPI_PORT=1\nHEADRACE_WEBHOOK_SECRETS=a\n"
    (tmp_path / ".env").write_text(text)
    verdict(found("env-file"), "ok")
    (tmp_path / ".env").write_text(f"{text}export HEADRACE_MAX_RETRIES=2\n HEADRACE_AUTH = on\n")
    names = ("HEADRACE_MAX_RETRIES", "HEADRACE_AUTH", "settings.env")
    verdict(found("env-file"), "warn", *names)
    exported: dict[str, Any] = {"HEADRACE_MAX_RETRIES": "2", "HEADRACE_AUTH": "on"}
    verdict(found("env-file", **exported), "ok")
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").mkdir()
    verdict(found("env-file"), "skip", "directory")


@breaks("certificate")
def test_a_certificate_that_ends_or_does_not_fit(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def problem(name: str, ends_in: timedelta, key: Path | None = None) -> CheckResult:
        made = authority.sign(name, ends_in)
        return found(
            "certificate",
            HEADRACE_TLS_CERT_FILE=str(made.cert_file),
            HEADRACE_TLS_KEY_FILE=str(key or made.key_file),
        )

    verdict(problem("old", timedelta(hours=-2)), "fail", "expired on", "within 10 s")
    verdict(problem("soon", timedelta(days=3, hours=1)), "warn", "in 3 days")
    verdict(problem("good", timedelta(days=300)), "ok", "is valid until")
    # Past 2049 DER writes the year with four digits.
    verdict(problem("long", timedelta(days=12_000)), "ok", "valid until 20")
    other = authority.sign("other").key_file
    verdict(problem("mixed", timedelta(days=300), other), "fail", "cannot be used")
    verdict(found("certificate", HEADRACE_TLS_CERT_FILE=str(tmp_path / "no")), "fail", "No such")
    verdict(found("certificate"), "skip")


@breaks("gpus")
def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = fake_smi(tmp_path, "Failed to initialize NVML: Driver/library mismatch", status=18)
    verdict(found("gpus", PATH=failed), "fail", "Driver/library mismatch", "reboot")
    there = fake_smi(tmp_path, "GPU 0: H100 (UUID: GPU-1)")
    verdict(found("gpus", PATH=there), "ok", "1 of 1 GPUs")
    verdict(found("gpus", PATH=there, CUDA_VISIBLE_DEVICES=""), "warn", "hides all")
    (tmp_path / "nvidia-smi").unlink()
    verdict(found("gpus", PATH=str(tmp_path)), "ok", "none on this host")
    monkeypatch.setattr(host, "CARDS", (str(tmp_path),))
    verdict(found("gpus", PATH=str(tmp_path)), "fail", "nvidia-smi cannot be run")


@breaks("torch")
def test_a_torch_that_does_not_fit_the_devices(tmp_path: Path) -> None:
    path = fake_smi(tmp_path, "GPU 0: H100 (UUID: GPU-1)")

    def of_torch(path: str = path, **said: object) -> CheckResult:
        return found("torch", PATH=path, PYTHONPATH=str(fake_torch(tmp_path, **said)))

    verdict(of_torch(os.environ["PATH"]), "ok", "torch 2.9.0, on the CPU with 2 threads")
    verdict(of_torch(), "fail", "built for the CPU", "1 GPU")
    old = of_torch(cuda="13.0", problem="The NVIDIA driver is too old")
    verdict(old, "fail", "driver is too old", "compare nvidia-smi")
    verdict(of_torch(cuda="13.0", count=1), "ok", "CUDA 13.0: H0")
    (tmp_path / "stand-in/torch/__init__.py").write_text("raise OSError('libcudart.so.13')")
    broken = found("torch", PATH=path, PYTHONPATH=str(tmp_path / "stand-in"))
    verdict(broken, "fail", "cannot be imported", "libcudart.so.13")


@breaks("payload-store")
def test_a_store_of_payloads_that_cannot_be_written(tmp_path: Path) -> None:
    def store(folder: Path) -> CheckResult:
        return found(
            "payload-store", HEADRACE_PAYLOAD_STORE="file", HEADRACE_PAYLOAD_DIR=str(folder)
        )

    verdict(store(tmp_path / "gone"), "fail", "does not exist")
    verdict(store(Path("/proc")), "fail", "cannot be written")
    verdict(store(tmp_path), "ok", "payloads")
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o777)
    verdict(store(tmp_path), "warn", "for all users", "chmod 700")
    verdict(found("payload-store", HEADRACE_PAYLOAD_STORE="file"), "fail", "payload_dir is not set")


@breaks("payload-store")
def test_a_bucket_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-north-1")
    bucket = found(
        "payload-store", HEADRACE_PAYLOAD_STORE="s3", HEADRACE_PAYLOAD_BUCKET="b",
        HEADRACE_PAYLOAD_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}",
    )  # fmt: skip
    verdict(bucket, "fail", "bucket b cannot be written", "credentials")


@breaks("state-dir")
def test_a_state_directory_that_others_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    verdict(found("state-dir", HEADRACE_STATE_DIR=str(folder)), "skip")
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    verdict(found("state-dir", HEADRACE_STATE_DIR=str(folder)), "warn", "chmod 700")
    folder.chmod(0o700)
    verdict(found("state-dir", HEADRACE_STATE_DIR=str(folder)), "ok")
    (tmp_path / "file").touch()
    verdict(found("state-dir", HEADRACE_STATE_DIR=str(tmp_path / "file")), "fail", "not a folder")


@breaks("disks")
def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((5, "warn"), (1, "fail"), (50, "ok")):
        usage = shutil._ntuple_diskusage(100, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        verdict(found("disks", HEADRACE_STATE_DIR=str(tmp_path)), expected, f"{free} B of 100 B")


@breaks("open-files")
def test_too_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    verdict(found("open-files"), "warn", "ulimit -n is 256", "LimitNOFILE")


@breaks("versions")
def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["redis>=99", "no-such-package>=1; extra == 'x'", "msgspec>=0.1"]
    monkeypatch.setattr(host, "requires", lambda _: wanted)
    verdict(found("versions"), "warn", "redis", ">=99", "pip install")
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    verdict(found("versions"), "fail", "3.10.1", ">= 3.11")


def test_nothing_is_looked_at_where_nothing_runs(tmp_path: Path) -> None:
    with site(HEADRACE_STATE_DIR=str(tmp_path / "none")) as bare:
        verdict(look(bare, "redis"), "warn", "no Redis URL is set", "headrace up")
        for name in ("redis-memory", "workers", "queues", "background", "clocks"):
            verdict(look(bare, name), "skip", "no Redis URL is set")
