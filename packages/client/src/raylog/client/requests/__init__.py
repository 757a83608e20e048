"""What is asked of brokers beside produce and fetch: requests as kio's types, answers read, and the way to the right
broker.

``admin_requests``, ``admin_groups``, ``admin_elections``, ``admin_reassignments`` and ``offset_queries`` ◆ are pure;
``calls`` sends them and tries again. Called by ``admin``, and by produce and fetch for what they ask. Begin with
``calls``.
"""
