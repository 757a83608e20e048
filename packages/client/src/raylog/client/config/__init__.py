"""◆ The client's settings, in Kafka's names: what all clients and producers have.

``client`` is the list, ``connection`` and ``compression`` parts of it, ``kafka`` says why others are not here,
``texts`` reads what users give. The consumer's own are in ``fetch.consumer_config``, a handler's in
``handlers.config``. Called by all rooms above. Begin with ``client``.
"""
