"""Topics to DataFrames, at once and as streams.

``source`` is ``read``, ``stream_source`` is ``stream`` (``stream_offsets`` ◆, ``stream_brokers``), both by ``options``
◆; ``frames`` makes ranges to DataFrames near their leaders; ``reader``, ``columns`` ◆ and ``values`` ◆ are what
executors do. Called by users, through ``raylog.spark.read`` and ``stream``, and by ``exports``. Begin with ``source``.
"""
