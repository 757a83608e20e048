"""Kafka is the judge: the same requests to an Apache Kafka broker and to ours, every answer compared.

``steps`` says what is asked, ``edges`` and ``lives`` make it up, ``asker`` asks one broker, ``verdict`` compares.
"""
