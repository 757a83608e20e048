"""When a process counts as dead: recorded pids decide whom we end, and whose port and lock are free again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.coordination.host.own_session import OwnSession, run_in_session
from raylog.coordination.host.processes import ProcessRef, running

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
        session = OwnSession.of_child(process.pid)
        session.end(grace_s=1.0)
        assert not [found for found in running() if found.session == process.pid]
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


def test_no_signal_reaches_who_has_the_pid_of_a_recorded_process() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        ref = ProcessRef.of(process.pid)
        assert ref is not None
        for another in (ref._replace(start_time=ref.start_time - 1), ref._replace(boot_id="before")):
            assert not another.signal(signal.SIGKILL)
            another.end(0.1)
        assert process.poll() is None
        assert ref.signal(signal.SIGKILL)
        assert process.wait(scaled(10)) == -signal.SIGKILL


def test_a_session_of_which_no_recorded_process_lives_is_left_alone(tmp_path: Path) -> None:
    """Its number may have been given again: as if `cat` had the number of a session that was recorded."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        OwnSession.of_child(process.pid).save(tmp_path / "record")
        recorded = json.loads((tmp_path / "record").read_text())
        [[pid, start_time, boot_id]] = recorded["processes"]
        for other in ([pid, start_time - 1, boot_id], [pid, start_time, "before"], [pid, start_time]):
            (tmp_path / "record").write_text(json.dumps({**recorded, "processes": [other]}))
            session = OwnSession.load(tmp_path / "record")
            assert session is not None
            session.end(grace_s=0.1)
            assert session.members() == []
        assert process.poll() is None
        process.kill()


def test_a_process_recorded_elsewhere_does_not_prove_a_session(tmp_path: Path) -> None:
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as here,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as other,
    ):
        ref = ProcessRef.of(here.pid)
        assert ref is not None
        OwnSession(other.pid, [ref]).end(grace_s=0.1)
        assert here.poll() is None
        assert other.poll() is None
        here.kill()
        other.kill()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"session": 1}', '{"session": 1, "processes": [1]}'])
def test_a_damaged_record_names_no_session(tmp_path: Path, damage: str) -> None:
    (tmp_path / "record").write_text(damage)
    assert OwnSession.load(tmp_path / "record") is None
    assert OwnSession.load(tmp_path / "absent") is None


def test_a_session_is_recorded_before_its_command_and_with_what_it_leaves(tmp_path: Path) -> None:
    record = tmp_path / "record"
    leaves = f"import subprocess; print(open({str(record)!r}).read(), flush=True); subprocess.Popen(['cat'])"
    with subprocess.Popen(
        run_in_session(record, [sys.executable, "-c", leaves]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout is not None
        before = json.loads(launcher.stdout.readline())
        assert [pid for pid, *_ in before["processes"]] == [launcher.pid] == [before["session"]]
        assert launcher.wait(scaled(10)) == 0
        session = OwnSession.load(record)
        assert session is not None
        left = session.members()
        assert [member.name for member in left] == ["cat"]
        session.end(grace_s=1.0)
        assert not left[0].ref.is_alive
