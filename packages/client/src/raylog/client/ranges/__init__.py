"""Ranges of offsets: what Spark, Ray Data and exports read, a task each.

``offset_ranges`` ◆ is what users write and where it lies, ``range_planner`` asks brokers, ``range_reader`` is what a
task does, ``host_addresses`` says which brokers are on which nodes, ``producer_traces`` how far a producer got. Called
by ``data``, ``ray_data`` and ``raylog.spark``. Begin with ``offset_ranges``.
"""
