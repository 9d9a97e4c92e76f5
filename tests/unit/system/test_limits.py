"""Limits of the system, met by a process of their own, and signals that come before the command line is there."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fedexp.errors import LimitError
from fedexp.system.limits import explained
from tests.conftest import SMALL

COMMAND = (sys.executable, "-m", "fedexp", "algo=fedavg", "rounds=1", "local.epochs=1")


@pytest.mark.parametrize(
    ("limit", "most", "settings", "words"),
    [
        (resource.RLIMIT_NOFILE, 8, ["executor=processes", "executor.workers=2"], "may have 8 files open at once"),
        (resource.RLIMIT_AS, 60_000 * 1024, [], "`ulimit -v` is 60000"),
        (resource.RLIMIT_AS, 400_000 * 1024, [], "`ulimit -v` is 400000"),
    ],
)
def test_a_low_limit_gets_a_sentence(tmp_path, limit, most, settings, words):
    done = subprocess.run(
        [*COMMAND, *settings, f"out={tmp_path}"],
        capture_output=True,
        text=True,
        preexec_fn=partial(resource.setrlimit, limit, (most, most)),
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert "LimitError" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)), MemoryError(), RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_told_from_other_errors(error):
    with pytest.raises(LimitError, match="ulimit"), explained():
        raise error


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no file"), RuntimeError("shapes"), ImportError("no module")])
def test_other_errors_are_left_as_they_are(error):
    with pytest.raises(type(error)) as caught, explained():
        raise error
    assert caught.value is error


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SLOW = """
import builtins, sys, time
real = builtins.__import__
def slow(name, *args, **options):
    if name == "fedexp.cli":
        print("importing", flush=True)
        time.sleep(60)
    return real(name, *args, **options)
builtins.__import__ = slow
from fedexp.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports_ends_the_process_without_a_traceback(number):
    with python(SLOW) as process:
        assert process.stdout.readline() == "importing\n"
        time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert (out, err) == ("", "")


def test_importing_fedexp_leaves_signals_alone():
    code = "import signal; b = signal.getsignal(2), signal.getsignal(15); import fedexp, fedexp.__main__, fedexp.cli"
    with python(f"{code}; assert b == (signal.getsignal(2), signal.getsignal(15))") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_an_output_that_takes_nothing_gets_a_sentence(tmp_path):
    run = [sys.executable, "-m", "fedexp", *SMALL, "rounds=1", f"out={tmp_path}"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("LimitError: What a run says cannot be written to where standard output goes")
    assert "Traceback" not in done.stderr
