"""What a user gives: arguments, records, serializers and interceptors, checked at the call.

``arguments`` checks calls, ``record_values`` and ``column_values`` ◆ what is to be sent, ``serde`` ◆ turns values into
bytes, ``interceptors`` are the user's code on the way. Called by the producer, the consumer, the admin client and
groups. Begin with ``arguments``.
"""
