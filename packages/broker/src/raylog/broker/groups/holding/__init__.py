"""The groups that this broker coordinates at the moment: claimed, locked, kept going, and given up.

``held`` is a group under its fenced claim, ``table`` has the locks, ``holding`` claims on the first request, ``keeper``
sees to groups that nobody asks for, ``due`` are the threads that let their time pass. Called by ``groups.coordinator``
and ``groups.offsets``. Begin with ``held``.
"""
