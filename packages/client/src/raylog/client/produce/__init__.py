"""Sending: batches out of the accumulator to leaders, each exactly once and in order.

``sender`` does it; ``producer_state`` ◆ keeps sequences, ``producer_partitions`` ◆ what may be forgotten,
``batch_bytes`` ◆ the bytes; ``identity`` asks for producer ids, ``exit_flush`` closes producers that nobody closed.
Called by ``producer_core``. Begin with ``sender``.
"""
