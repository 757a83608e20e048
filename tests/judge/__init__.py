"""Kafka is the judge: the same requests to an Apache Kafka broker and to ours, every answer compared.

``steps`` says what is asked, ``cases`` (from ``bases`` and ``edges``) and ``lives`` make it up. ``asker`` asks one
broker over a ``wire``, ``told`` makes its answers comparable, ``running`` asks all, ``recorded`` has what Kafka said
(in ``kept``, as the others).
``verdict`` compares, ``choices`` and ``judgement`` say what may differ. ``ends`` asks what is there when lives are
over, ``disk`` reads the files, ``three`` does the same to three brokers of each kind.
"""
