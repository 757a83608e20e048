"""Three brokers of each kind under one script: leaders move, replicas come and go, brokers are killed.

What is acknowledged, and what can be read in the end, must be the same of both. On the way there each may answer what a
client tries again. ``script`` says what is done, ``client`` asks until it is answered, ``running`` does it, ``kept``
keeps and compares what came out.
"""
