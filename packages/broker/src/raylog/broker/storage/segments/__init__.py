"""A segment: one log file with its two indexes, named by the offset that it begins with.

``segment`` appends and rolls, ``held`` is the only way to read its file, ``index`` finds positions, ``unchecked`` knows
what is still to be checked, ``segments`` looks one up among many, ``warm_indexes`` bounds their memory. Called by
``log`` and ``directories``. Begin with ``segment``.
"""
