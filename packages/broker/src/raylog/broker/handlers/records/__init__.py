"""The APIs about records in partitions: Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch, producers.

One file per API; ``fetch_read`` reads for Fetch, ``commit_wait`` and ``watermark_wait`` are what Produce and
DeleteRecords wait for. Called by the table in ``handlers``. Begin with ``produce``.
"""
