"""◆ Leaders, followers and waiting requests, in terms of offsets; knows no logs.

``leader`` says how far the log is committed and who is in sync, ``follower`` what a leader's answer means; ``delayed``
and ``delayed_operations`` are requests that wait, ``quota`` bounds what replicas that catch up are fed. Called by
``partition`` and ``handlers``. Begin with ``leader``.
"""
