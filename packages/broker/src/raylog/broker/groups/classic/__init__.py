"""◆ A group of Kafka clients, by the classic protocol: its state machine, its members, what is asked and what is
stored.

``group`` is the machine, ``members`` and ``messages`` its parts; ``stored`` outlives its coordinator, under the claim
that ``claims`` describes; ``described`` is what others see. Called by ``holding`` and by handlers for the values. Begin
with ``group``.
"""
