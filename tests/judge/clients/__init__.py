"""Java's client is the judge of ours, where what it does follows from its inputs: where a key goes, the bytes of a
batch, who of a group reads what.

``keys``, ``batches`` and ``groups`` each make up questions under a seed, answer them as our client does, and compare.
``java`` asks Java's client, ``kept`` has what it said.
"""
