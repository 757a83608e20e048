"""The producer: records in, whole batches out, a future for every record."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from raylog.client.delivery import Delivery


class Producer:
    """Sends records in batches; safe to use from many threads.

    ``config`` takes Kafka's producer settings with underscores (``linger_ms=20, compression_type="zstd"``).
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **config: Any) -> None:
        raise NotImplementedError

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
    ) -> Delivery:
        """Queue one record and promise its delivery; ``.result(timeout_s)`` gives its RecordMetadata.

        Blocks while ``buffer.memory`` is full or the topic's metadata is missing, at most ``max.block.ms``.
        """
        raise NotImplementedError

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when every record sent so far was delivered or has failed; RequestTimedOut when that takes
        longer."""
        raise NotImplementedError

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What isn't delivered within ``timeout_s`` fails."""
        raise NotImplementedError

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
