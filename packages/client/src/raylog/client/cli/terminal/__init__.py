"""What commands share: options and the way to the cluster, records as lines, JSON, progress, and how a command ends.

Called by every command, also by those of other packages. Begin with ``common``.
"""
