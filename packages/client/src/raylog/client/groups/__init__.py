"""Reading in a group of actors: membership in a thread of its own, partitions that come and go, commits.

``group_consumer`` is a consumer's side of it (``group_consumer_core`` ◆), ``group_consumer_join`` makes it a member;
``member`` is the membership for the user's thread, ``member_thread`` the thread that keeps it; ``consumer_in_group`` is
what both consumers have of it. Called by ``consumer`` and ``aio``. Begin with ``group_consumer``.
"""
