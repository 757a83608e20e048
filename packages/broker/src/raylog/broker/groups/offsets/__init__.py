"""What becomes of committed offsets: written in batches, measured, and forgotten when nobody needs them.

``committer`` gathers commits, ``empty`` keeps since when a group has no members, ``retention`` and ``lag`` run in the
thread of ``upkeep``. Called by ``groups.coordinator`` and ``parts``. Begin with ``committer``.
"""
