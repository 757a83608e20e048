"""Log directories: their locks and identity, the logs in them, recovery, and looking at their files.

``log_dirs`` has all of them, ``log_dir`` one; ``recovery`` loads a log after a stop or a crash; ``scrub`` checks in the
background, ``stored`` and ``verify`` look from outside, ``clock`` is the time that retention goes by. Called by
``partition``, ``parts`` and the commands. Begin with ``log_dirs``.
"""
