"""The broker: segmented logs, the Kafka socket server and the Ray actor around them.

From below: ``config``, then ``storage``, ``replication`` and ``groups``, ``partition``, ``handlers``, ``net``,
``replicas`` and ``cluster``; ``parts`` and ``broker`` put them together without Ray, ``launch`` runs that as an actor,
``cli`` has the commands. ``events`` and ``counters`` may be used by all. A room calls those below it. Begin with
``broker``, then ``parts``.
"""

import raylog.protocol  # noqa: F401  (it must be the first to import kio)
