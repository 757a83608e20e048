"""This machine: its clocks, threads, processes, ports, private files and Java.

``loops`` is the one way to have a long-lived thread; ``processes`` and ``own_session`` end what was started here, by
record, and nothing else; ``ray_token`` is the one place that asks Ray for something. The bottom of coordination:
whatever does I/O may call it, cores may not. Begin with ``loops``.
"""
