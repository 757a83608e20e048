"""What producers have left in the log: how far each of them got, told by the headers of its batches (KIP-98).

A broker answers that, too, but forgets producers that were silent for long, and knows of records that followers don't
have yet and that may be lost with it. The log up to the high watermark is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from raylog.client.consumer import Consumer
from raylog.client.produce.producer_state import Identity
from raylog.protocol.batches.header import batch_headers
from raylog.protocol.errors import RequestTimedOut
from raylog.protocol.ids import TopicPartition

_POLL_MS = 1_000
_STALL_S = 120.0
"""How long nothing may come before that is an error."""


def next_sequences(
    bootstrap_servers: str, starts: Mapping[TopicPartition, int], identities: Collection[Identity]
) -> dict[Identity, dict[TopicPartition, int]]:
    """One past the last sequence that each producer has in each partition, from the offsets ``starts`` up to the
    high watermark; left out where it has none.

    Reads all that is there, batch by batch and no record. Raises OffsetOutOfRange when a start is not in the log (any
    more), UnknownTopicOrPartition, RequestTimedOut, BrokerNotAvailable.
    """
    wanted = set(identities)
    found: dict[Identity, dict[TopicPartition, int]] = {}
    with Consumer(bootstrap_servers, auto_offset_reset="none") as consumer:
        left = {tp: end for tp, end in consumer.end_offsets(starts).items() if end != starts[tp]}
        consumer.assign(left)
        for tp in left:
            consumer.seek(*tp, starts[tp])
        deadline = time.monotonic() + _STALL_S
        while left:
            polled = consumer.poll_batches(timeout_ms=_POLL_MS)
            for tp, batches in polled.items():
                for _, header in batch_headers(batches.data):
                    identity = Identity(header.producer_id, header.producer_epoch)
                    if identity in wanted:
                        reached = found.setdefault(identity, {})
                        reached[tp] = max(reached.get(tp, 0), header.last_sequence + 1)
                if tp in left and batches.next_offset >= left[tp]:
                    del left[tp]
            if polled:
                deadline = time.monotonic() + _STALL_S
            elif time.monotonic() >= deadline:
                raise RequestTimedOut(
                    f"{', '.join(map(str, left))}: nothing came within {_STALL_S:g} s: are their leaders up? "
                    "(`raylog status`)"
                )
    return found
