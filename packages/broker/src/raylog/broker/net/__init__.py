"""Sockets: accepting, admission, reading frames, sending replies.

``server`` has the listeners' threads, ``acceptor`` keeps silent connections, ``connection`` serves one client,
``transmit`` sends bytes and file slices, ``request_memory`` and ``admission`` bound what is taken in, ``listeners``
chooses addresses. Called by ``parts`` and ``launch``; it calls ``handlers`` by their table. Begin with ``server``.
"""
