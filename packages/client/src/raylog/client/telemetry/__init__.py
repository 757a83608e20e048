"""What a client tells of itself: metrics under the names of Java's client, and log lines that do not repeat.

``metrics`` ◆ counts, ``metrics_reporter`` hands that to the user's callback and, in Ray, to ``ray_metrics``;
``client_log`` writes lines with the client's name, ``seldom`` ◆ holds repetitions back. Called by all rooms above.
Begin with ``metrics``.
"""
