"""◆ Kafka's requests and responses: frames, primitive types, and the messages in them.

``produce`` and ``fetch`` are parsed by hand, because they are hot; all others go through ``messages``, which has kio's
types, read by ``entities``. ``consumer_protocol`` is what consumers tell each other through their group's coordinator.
Called by the broker's net and handlers, and by the client's network. Begin with ``messages``.
"""
