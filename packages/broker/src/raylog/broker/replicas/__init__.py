"""What the broker does as a replica of others' partitions and with the replicas of its own.

``fetchers`` copies from leaders, by one ``fetcher`` each, over a ``leader_connection`` with a fetch session
(``follower_session`` ◆); ``isr_changes`` asks the controller for AlterPartition. Called by ``parts`` alone; it calls
``partition`` and ``net``. Begin with ``fetchers``.
"""
