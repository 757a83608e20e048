"""What is known of a log without reading it: offsets, the last appends, leader epochs, producers, and the settings it
goes by.

``producers`` and ``epochs`` are ◆ cores; ``offsets`` and ``marks`` are values; ``log_config`` is a topic's settings,
looked up. Called by ``segments``, ``log`` and ``directories``. Begin with ``producers``.
"""
