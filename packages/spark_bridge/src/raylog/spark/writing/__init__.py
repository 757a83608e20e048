"""DataFrames to topics: at least once by ``write``, exactly once by ``sink``.

``writes`` and ``write_task`` send rows as ``write_options`` ◆ say. ``sinks`` is the sink: ``sink_batch`` and
``sink_plan`` ◆ make it exact, ``sink_store`` and ``sink_files`` keep its marks, ``sink_topics`` asks brokers,
``sink_task`` sends. Called by users, through ``raylog.spark.write`` and ``sink``. Begin with ``writes`` or
``sink_batch``.
"""
