"""Reading: which partitions, from where, of which broker; what was fetched, and what the user has still to be told.

``subscription`` ◆ has the places, ``fetcher`` the exchange with brokers by ``fetch_plan``, ``fetch_session`` and
``fetch_state`` ◆; ``leaders``, ``read_replicas``, ``offset_searches`` and ``epoch_checks`` are its questions;
``consumer_config`` ◆ its settings. Called by ``consumer_core``. Begin with ``fetcher``.
"""
