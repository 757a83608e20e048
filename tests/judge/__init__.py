"""Kafka is the judge: the same requests to an Apache Kafka broker and to ours, every answer compared.

``steps`` says what is asked, ``cases`` (from ``bases`` and ``edges``) and ``lives`` make it up. ``asker`` asks one
broker over a ``wire``, ``told`` makes its answers comparable, ``running`` asks all, ``recorded`` keeps what Kafka said.
``verdict`` compares, ``choices`` and ``judgement`` say what may differ.
"""
