"""The APIs about settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

One file per API; ``config_changes`` is what the two that alter share, ``config_entries`` how a setting looks in an
answer. Called by the table in ``handlers``; CreateTopics answers with ``config_entries``, too. Begin with
``describe_configs``.
"""
