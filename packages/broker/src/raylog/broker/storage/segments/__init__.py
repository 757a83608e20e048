"""A segment: one log file with its two indexes, named by the offset that it begins with.

``segment`` appends, ``held`` is the only way to read its file, ``loading`` takes it up as it lies there and cuts it,
``index`` finds positions, ``unchecked`` knows what is still to be checked, ``segments`` looks one up among many and
bounds the indexes in memory. Called by ``log`` and ``directories``. Begin with ``segment``.
"""
