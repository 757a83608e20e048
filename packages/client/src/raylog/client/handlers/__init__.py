"""Groups with handlers: the user's code, called with records by consumer actors all over the Ray cluster.

``actor_group`` is the user's handle, ``consumer_actor`` the Ray shell of one member, ``runner`` that member in its
thread, ``core`` ◆ what it does next, ``batches`` ◆ what it is called with; ``plan`` travels to it, ``config`` ◆ has the
settings. Called by users, through ``raylog.client.group``. Begin with ``runner``.
"""
