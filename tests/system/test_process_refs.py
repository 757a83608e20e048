"""When a process counts as dead: recorded pids decide whom we end, and whose port and lock are free again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit.waiting import wait_until
from raylog.broker.processes import end_session, session_members
from raylog.coordination.processes import ProcessRef

pytestmark = pytest.mark.system

FIRST_THREAD_ENDS = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)  # exit of this thread alone
"""

STARTS_ANOTHER_WHEN_ASKED_TO_END = """
import signal, subprocess, sys
def restart(*_):
    subprocess.Popen([sys.executable, "-c", "input()"])
    sys.exit()
signal.signal(signal.SIGTERM, restart)
print("ready", flush=True)
sys.stdin.read()
"""


def test_ending_a_session_ends_what_its_processes_start_meanwhile() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ANOTHER_WHEN_ASKED_TO_END],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        end_session(process.pid, grace_s=1.0)
        assert session_members(process.pid) == []
        assert process.stdin is not None
        process.stdin.close()


def test_a_process_is_alive_until_its_last_thread_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE)
    ref = ProcessRef.of(process.pid)
    assert ref is not None
    assert process.stdin is not None
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 10, "the first thread has ended")
        assert ref.is_alive
        process.stdin.close()
        wait_until(lambda: not ref.is_alive, 10, "the last thread has ended")
    finally:
        process.kill()
        process.wait()


def test_a_dead_process_that_nobody_waited_for_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        wait_until(lambda: ProcessRef.of(process.pid) is None, 10, "it has ended")
    finally:
        process.wait()
