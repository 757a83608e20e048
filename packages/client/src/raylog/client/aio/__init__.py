"""Producer and consumer for asyncio: the cores of the threaded ones, with an event loop that waits.

No thread is behind them, but for a member of a group, whose membership has its own: the loop watches one file
descriptor a client (its selector's) and runs a step of the client's work when that becomes readable or a time has come.
Batches are encoded and decoded in the loop, some ten microseconds a batch; heavy compression of large batches holds up
the loop accordingly.
"""

from raylog.client.aio.consumer import AsyncConsumer
from raylog.client.aio.group_task import AsyncRebalanceListener
from raylog.client.aio.producer import AsyncBatchDelivery, AsyncDelivery, AsyncProducer

__all__ = ["AsyncBatchDelivery", "AsyncConsumer", "AsyncDelivery", "AsyncProducer", "AsyncRebalanceListener"]
