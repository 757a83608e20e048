"""◆ The controller: events in, writes and messages out. It has no clock, no store and no thread.

``controller`` takes events in and gives its jobs their turn: ``topics``, ``leaders``, ``leader_elections``, ``isr``.
``office`` holds one mandate's state; ``writes`` has every multi with its checks; ``peers``, ``handovers``, ``silence``,
and what is pending (``pending_requests``, ``pending_proposals``) follow the brokers. Called by the broker's
``cluster.controller_runtime`` alone. Begin with ``events``, then ``controller``.
"""
