"""Everything at once: clients of all kinds beside deletion, moves and kills. See ``kit.churn``.

A minute long, and two at night; RAYLOG_CHURN_S=n makes it n seconds long, SEED=n chooses other actions; ``make churn
SECONDS=1800`` is the long run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.churn.run import churn
from kit.forms import NIGHTLY
from kit.history_checker import Verdict

SECONDS = float(os.environ.get("RAYLOG_CHURN_S", "120" if NIGHTLY else "60"))
SEED = int(os.environ.get("SEED", "1"))

pytestmark = [pytest.mark.system, pytest.mark.timeout(900 + 2 * SECONDS)]

HAPPENED = [
    "action delete_records",
    "action drain",
    "action elect_preferred_leaders",
    "action kill",
    "action reassign",
    "action renew_topic",
    "by-id: acked",
    "by-id: repeated",
    "fetches: answered",
    "fetches: sent to a near replica",
    "group actors: handed out",
    "group clients of one life: handed out",
    "group clients: handed out",
    "group cooperative clients: handed out",
    "librdkafka: acked",
    "librdkafka-renewed: acked",
    "look-ups beside deletion 0: -3",
    "look-ups beside deletion 0: by time",
    "look-ups: -3",
    "look-ups: -4",
    "look-ups: by time",
    "look-ups: ends",
    "look-ups: starts",
    "raylog: acked",
    "raylog-renewed: acked",
    "sessions: absent",
    "sessions: incremental",
    "sessions: out of range",
    "sessions: records",
    "trimmer: records deleted",
]
"""What has to have happened for the rest to show anything."""


MOST_TOLD = 20
"""Faults that a failure shows; the first ones are usually the cause of the others."""


def test_churn_loses_nothing_and_takes_nothing_offline(tmp_path: Path) -> None:
    report = churn(tmp_path, seconds=SECONDS, seed=SEED)
    print(f"\n{report}")
    where = f"(the brokers' logs and the history: {tmp_path})"
    assert report.faults == [], "\n".join([*report.faults[:MOST_TOLD], where])
    assert report.judgement is not None
    assert report.judgement.verdict is Verdict.VALID, (report.judgement, *report.judgement.findings, where)
    assert report.deleted_files == {}, f"deleted files stay open {where}"
    assert [what for what in HAPPENED if not report.counts[what]] == []
