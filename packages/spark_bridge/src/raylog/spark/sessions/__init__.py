"""Spark on the Ray cluster of the brokers, by RayDP.

``sessions`` starts and ends one; ``plan`` ◆ decides whether the nodes are fit, ``nodes``, ``ray`` and ``jvm`` carry
that out, ``interrupts`` sees to Ctrl-C. Called by users, through ``raylog.spark.session``. Begin with ``sessions``.
"""
