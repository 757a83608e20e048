"""Sockets: accepting, admission, reading frames, sending replies, all in one thread (D4).

``loop`` is that thread, ``connection`` serves one client with ``exchange`` (the order of requests and replies) and
``output`` (what goes out), ``acceptor`` takes clients in by ``listeners`` and ``sockets``, ``request_memory`` and
``admission`` bound what is taken in, ``away`` has ``threads`` do what may wait, ``slow_apis`` tells of more. Called by
``parts`` and ``launch``; it calls ``handlers`` by their table. Begin with ``server``.
"""
