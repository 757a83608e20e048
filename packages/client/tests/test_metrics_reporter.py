"""Metrics that tell themselves: to a callback, and as series."""

from __future__ import annotations

import gc
import logging
from math import nan
from queue import SimpleQueue
from typing import Any

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client.config.client import PRODUCER_SETTINGS, client_settings
from raylog.client.telemetry.metrics import Metric
from raylog.client.telemetry.metrics_reporter import MetricsExport, MetricsReporter
from raylog.client.telemetry.seldom import AGAIN_MS, Seldom
from raylog.protocol.errors import InvalidConfig

PATIENCE_S = 10.0
TOTAL, GAUGE = Metric("record-send-total", "metrics", ""), Metric("batch-size-avg", "metrics", "")


class Client:
    def metrics(self) -> dict[str, float]:
        return {"record-send-total": 7}


def reporter(client: Client, stats_cb: Any, interval_ms: int = 1) -> MetricsReporter:
    settings = client_settings(PRODUCER_SETTINGS, "h:1", {"statistics_interval_ms": interval_ms, "client_id": "mine"})
    telling = MetricsReporter("producer", settings, (TOTAL,), client.metrics, stats_cb)
    telling.start()
    return telling


def test_the_callback_gets_the_metrics_again_and_again_until_it_is_stopped() -> None:
    heard: SimpleQueue[dict[str, float]] = SimpleQueue()
    client = Client()
    telling = reporter(client, heard.put)
    assert [heard.get(timeout=scaled(PATIENCE_S)) for _ in range(3)] == [{"record-send-total": 7}] * 3
    telling.stop()
    assert telling.is_over


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1)])
def test_a_callback_that_raises_is_told_once_and_called_again(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls: SimpleQueue[int] = SimpleQueue()

    def raising(_: dict[str, float]) -> None:
        calls.put(1)
        raise error

    client = Client()
    telling = reporter(client, raising)
    for _ in range(5):
        calls.get(timeout=scaled(PATIENCE_S))
    telling.stop()
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.getMessage() == "producer mine: stats_cb raised; it is called again all the same"
    assert line.exc_info is not None


def test_a_client_that_nobody_holds_any_more_is_not_held_by_its_callback() -> None:
    client = Client()
    telling = reporter(client, lambda _: None)
    del client
    gc.collect()
    wait_until(lambda: telling.is_over, PATIENCE_S, "its thread ends")


@pytest.mark.parametrize(("stats_cb", "interval_ms"), [(print, 0), ("print", 1)])
def test_a_callback_that_could_never_be_called_is_refused(stats_cb: Any, interval_ms: int) -> None:
    with pytest.raises(InvalidConfig, match="stats_cb"):
        reporter(Client(), stats_cb, interval_ms)


class Recorded:
    """The series of an exporter."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float, str]] = []
        self._name = ""

    def __call__(self, name: str, _: Metric) -> Recorded:
        self._name = name
        return self

    def inc(self, value: float, tags: dict[str, str], /) -> None:
        self.calls.append(("inc", self._name, value, tags["client"]))

    def set(self, value: float, tags: dict[str, str], /) -> None:
        self.calls.append(("set", self._name, value, tags["client"]))


SENT, SIZE = "kafka_producer_producer_metrics_record_send_total", "kafka_producer_producer_metrics_batch_size_avg"


def test_series_grow_by_what_is_new_and_leave_out_what_was_not_measured() -> None:
    seen = Recorded()
    export = MetricsExport("producer", "growing", (TOTAL, GAUGE), seen)
    export.publish({"record-send-total": 5, "batch-size-avg": nan})
    export.publish({"record-send-total": 8, "batch-size-avg": 90.0})
    export.publish({"record-send-total": 8, "batch-size-avg": 90.0})
    export.end({"record-send-total": 9, "batch-size-avg": 90.0})
    assert seen.calls == [
        ("inc", SENT, 5, "0"),
        ("inc", SENT, 3, "0"),
        ("set", SIZE, 90, "0"),
        ("set", SIZE, 90, "0"),
        ("inc", SENT, 1, "0"),
        ("set", SIZE, 0, "0"),
    ]


def test_clients_of_one_name_have_series_of_their_own_and_take_up_those_of_the_closed() -> None:
    seen = Recorded()
    first, second = (MetricsExport("producer", "twins", (TOTAL,), seen) for _ in range(2))
    first.end({})
    third = MetricsExport("producer", "twins", (TOTAL,), seen)
    for export in (second, third):
        export.publish({"record-send-total": 1})
    assert [number for *_, number in seen.calls] == ["1", "0"]


def test_a_line_that_repeats_itself_is_due_once_a_minute() -> None:
    seldom = Seldom()
    assert [seldom.due("a", 0), seldom.due("a", 1), seldom.due("b", 1), seldom.due("a", 2)] == [0, None, 0, None]
    assert seldom.due("a", AGAIN_MS) == 2
    assert seldom.due("a", 2 * AGAIN_MS) == 0
