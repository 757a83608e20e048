"""Java's client behind a pipe: a question in, an answer out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from judge.clients.question import Answer, Question
from kit.kafka_java import JVM, KAFKA_4
from kit.maven import SOURCES, jars

__all__ = ["JavaClient", "java_client"]


class JavaClient:
    """One JVM with the client of :data:`KAFKA_4`."""

    def __init__(self, jvm: subprocess.Popen[str]) -> None:
        self._jvm = jvm

    def ask(self, question: Question) -> Answer:
        """What it answers. Raises RuntimeError with what Java raised where it takes no such input."""
        stdin, stdout, stderr = self._jvm.stdin, self._jvm.stdout, self._jvm.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        stdin.write(json.dumps({"ask": question.ask, **question.inputs}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{question.name}: the JVM ended: {stderr.read()[-2_000:]}")
        return json.loads(line)

    def ask_all(self, questions: Iterable[Question]) -> dict[str, Answer]:
        """The answers by the questions' names."""
        return {question.name: self.ask(question) for question in questions}


@contextmanager
def java_client() -> Iterator[JavaClient]:
    """A JVM that ends with the block; needs ``java``, ``javac`` and ``mvn``."""
    command = [*JVM, f"{jars(KAFKA_4)}/*", str(SOURCES / "ClientAnswers.java")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as jvm:
        try:
            yield JavaClient(jvm)
        finally:
            jvm.kill()
