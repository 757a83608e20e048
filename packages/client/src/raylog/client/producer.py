"""The producer for threads: it blocks where it must wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from threading import Condition
from types import TracebackType
from typing import Any, Self

from raylog.client.arguments.arguments import wait, wait_or_none
from raylog.client.arguments.interceptors import ProducerBatch, ProducerChain, ProducerInterceptor, ProducerRecord
from raylog.client.arguments.record_values import Headers
from raylog.client.arguments.serde import Serializer
from raylog.client.delivery import BatchDelivery, Delivery, delivers_here, is_delivering, refuse_to_wait
from raylog.client.network.network import CONNECT_POLL_MS
from raylog.client.produce.exit_flush import KEPT, STOP_S, forget, remember
from raylog.client.produce.producer_state import Continuation
from raylog.client.producer_core import Partitioner, ProducerCore
from raylog.client.telemetry.metrics_reporter import Statistics
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import RaylogError, RequestTimedOut
from raylog.protocol.logs import Logger

log = Logger(__name__)

_LAST_PAUSE_S = 1.0
"""The longest pause of the sender's thread after a step that failed."""


class Producer(ProducerCore):
    """Sends records in batches; safe to use from many threads, not in a forked child.

    ``Producer("host:port,…", linger_ms=20, compression_type="zstd")``: Kafka's producer settings with underscores.
    ``key_serializer`` and ``value_serializer`` are msgpack, bytes, str, json or a function from a value to bytes; by
    default bytes are sent as they are and every other value as msgpack. None is null, always. ``partitioner`` is a
    name or a function of (key bytes or None, all partitions, those with a leader). A producer that is not closed is
    flushed at the end of the process, for at most 30 s. ``stats_cb`` is called with :meth:`metrics` every
    ``statistics.interval.ms``, in a thread of its own; what it raises is logged. ``interceptors``: see
    ProducerInterceptor. ``continues``: go on under the numbers of another producer; the first batch that fails fails
    all that follow. Raises InvalidConfig.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        partitioner: str | Partitioner | None = None,
        stats_cb: Statistics | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        continues: Continuation | None = None,
        **config: Any,
    ) -> None:
        super().__init__(
            bootstrap_servers, key_serializer, value_serializer, partitioner, config, continues, stats_cb, interceptors
        )
        if self._interceptors is not None:
            self.send = self._intercepted  # type: ignore[method-assign]
        self._news = Condition(self._lock)
        self._write_until_s = inf
        """Once closed: until when records without acks may leave, monotonic."""
        self._thread = Loops().loop(
            "raylog-producer",
            self._step,
            mend=lambda _: self._sender.mend(),
            finish=self._finish,
            last_pause_s=_LAST_PAUSE_S,
        )
        with self._network.owned():
            try:
                self._thread.start()
            except BaseException:
                self._thread.stop()  # an interrupt may have come once it ran
                self._reporter.stop()
                raise
        remember(self)

    send = ProducerCore._send
    """Queue one record; not wrapped, because it is the hottest call of all."""

    def send_batch(
        self,
        topic: str,
        values: Any = None,
        keys: Any = None,
        *,
        partition: Any = None,
        headers: Any = None,
        timestamps: Any = None,
    ) -> BatchDelivery:
        """Queue many records at once, given as columns, and promise the delivery of them all.

        Columns are lists, whose items go through the serializers, or Arrow arrays, whose binary values are taken as
        they are. ``values`` may also be an Arrow Table or RecordBatch with some of the columns value, key, partition,
        headers and timestamp. ``partition`` is one number or a column. Batches are made of one call's records: call
        it with thousands. Blocks and raises as :meth:`send`; what is wrong with a row is found before any is queued.
        """
        if self._interceptors is not None:
            batch = ProducerBatch(topic, values, keys, partition, headers, timestamps)
            return self._intercepted_batch(self._interceptors, batch)
        return self._send_batch(topic, values, keys, partition, headers, timestamps)

    def _send_batch(
        self, topic: str, values: Any, keys: Any, partition: Any, headers: Any, timestamps: Any
    ) -> BatchDelivery:
        delivery = BatchDelivery()
        rows, partitions = self._columns.rows(values, keys, partition, headers, timestamps, wall_ms())
        for encoded in self._encoded(topic, rows, partitions):
            self._add_encoded(topic, encoded, delivery)
        return delivery

    def _intercepted(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Delivery:
        """:meth:`send` where there are interceptors."""
        assert self._interceptors is not None
        record = self._interceptors.on_send(ProducerRecord(topic, value, key, partition, headers, timestamp))
        topic, value, key, partition, headers, timestamp = record
        try:
            delivery = self._send(topic, value, key, partition=partition, headers=headers, timestamp=timestamp)
        except Exception as error:
            self._interceptors.refused(record, error)
            raise
        self._interceptors.follow(delivery)
        return delivery

    def _intercepted_batch(self, chain: ProducerChain, batch: ProducerBatch) -> BatchDelivery:
        try:
            delivery = self._send_batch(*chain.on_send_batch(batch))
        except Exception as error:
            chain.refused_batch(error)
            raise
        chain.follow_batch(delivery)
        return delivery

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when every record sent so far was delivered or has failed; its Delivery tells which.

        Raises RequestTimedOut when that takes longer than ``timeout_s``.
        """
        wait_or_none("timeout_s", timeout_s)
        refuse_to_wait("flush()")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for batch in self.hurry():
            try:
                batch.outcome.whole.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise RequestTimedOut(f"flush: not all records were settled within {timeout_s} s") from error

    def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; waits for its metadata as :meth:`send` does."""
        return self._current_route(topic).count

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What isn't settled within ``timeout_s`` fails. Twice does no harm.

        In a delivery callback it doesn't flush: what isn't delivered yet fails. A callback that does not return holds
        it up for ever without ``timeout_s``, and for a second more with it: then the log tells that the callbacks
        behind it are not called.
        """
        wait_or_none("timeout_s", timeout_s)
        if self._closed or self._fork.forked:
            return
        deadline_s = inf if timeout_s is None else time.monotonic() + timeout_s
        try:
            self.flush(timeout_s)
        except RaylogError:
            pass  # the rest fails when the sender stops: each record's Delivery says so
        finally:
            self._closed = True
            self._write_until_s = min(deadline_s, time.monotonic() + self._request_timeout_ms / 1_000)
            self._thread.stop()
            self._network.pool.wakeup()
            self._join(deadline_s)
            self._reporter.stop()
            forget(self)

    def close_at_exit(self, timeout_s: float) -> None:
        """Called at the end of the process."""
        wait("timeout_s", timeout_s)
        self.close(timeout_s)

    def _join(self, deadline_s: float) -> None:
        left_s = max(deadline_s - time.monotonic(), STOP_S)
        self._thread.join(None if left_s == inf else left_s)
        if left_s < inf and self._thread.is_alive and not is_delivering():
            log.error(KEPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self) -> bool:
        delivers_here()
        if self._thread.stopping.is_set():
            self._write_out()
            return False
        self._sender.step()
        return True

    def _finish(self) -> None:
        why = "was closed" if self._closed else "lost its thread, as the log says,"
        self._closed = True
        self._sender.finish(RaylogError(f"the producer {why} before the record was delivered"))
        if self._interceptors is not None:
            self._interceptors.close()

    def _write_out(self) -> None:
        """Let what counts as delivered leave before the connections close."""
        while self._sender.unwritten():
            if time.monotonic() >= self._write_until_s:
                log.error(
                    "a producer closes, and its last records, sent with acks=0, did not leave: brokers do not read"
                )
                return
            self._network.pool.poll(CONNECT_POLL_MS)

    def _wait(self, condition: Callable[[], Any], what: str | RaylogError) -> Any:
        deadline = time.monotonic() + self._max_block_s
        self._accumulator.in_a_hurry += 1
        try:
            while True:
                answer = self._ask(condition)
                if answer:
                    return answer
                refuse_to_wait(f"waiting ({what})")
                left = deadline - time.monotonic()
                self._network.pool.wakeup()
                if left <= 0 or not self._news.wait(left):
                    raise self._blocked(what)
        finally:
            self._accumulator.in_a_hurry -= 1

    def _tell_news(self) -> None:
        self._news.notify_all()
