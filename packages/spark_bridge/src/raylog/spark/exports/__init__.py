"""A topic's records as Parquet files, each record exactly once.

``exports`` is ``export``, ``plan`` ◆ what is left to write, ``task`` what an executor does, ``files`` how a file is
published: whole, once; ``commands`` is ``raylog spark export``. Called by users, through ``raylog.spark.export``. Begin
with ``plan``.
"""
