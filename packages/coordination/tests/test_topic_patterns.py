"""Patterns of topics: what they match, what is refused, and that no pattern holds up whoever matches it."""

from __future__ import annotations

import re
import time

import pytest

from raylog.coordination.metadata.topic_patterns import matching_topics, pattern_text
from raylog.protocol.errors import InvalidConfig

LONGEST = "a" * 248 + "-"
"""The longest name of a topic, which no pattern below matches."""
HOSTILE = ["(a+)+$", "(a|aa)+$", "(a|a?)+$", "(.*a){30}b", "(([ab]?){50}){20}c", ".*[ab]?.{0,900}c.*a.{900}"]
MOST_S = 0.5
"""Each takes some milliseconds at most; a stall of the machine may come on top."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_pattern_costs_milliseconds(pattern: str) -> None:
    begun = time.thread_time()
    assert matching_topics(pattern, [LONGEST]) == []
    assert time.thread_time() - begun < MOST_S


@pytest.mark.parametrize("pattern", ["(a{0,1000}){0,1000}", r"\pL{0,1000}", "(" * 100_000, "a" * 1_000_000])
def test_pattern_too_large_is_refused(pattern: str) -> None:
    begun = time.thread_time()
    with pytest.raises(InvalidConfig) as refused:
        matching_topics(pattern, ["t"])
    assert time.thread_time() - begun < MOST_S
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?!a)b", "(?<=a)b", "(?>a)", "a++", "(?x) a b", "(", "\ud800"])
def test_what_re2_has_not_is_one_plain_line(pattern: str) -> None:
    with pytest.raises(InvalidConfig, match=r"no regular expression of RE2, which has neither look-around") as refused:
        matching_topics(pattern, ["t"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "pattern", [re.compile(r"(a)\1"), re.compile("(?!a)b"), re.compile("a b", re.VERBOSE), re.compile("a{,3}")]
)
def test_what_would_match_otherwise_is_refused_at_once(pattern: re.Pattern[str]) -> None:
    with pytest.raises(InvalidConfig, match=r"topics: |the pattern "):
        pattern_text(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile("orders.*"),
        re.compile(r"orders-[a-z]+\.\d{2,}"),
        re.compile("ORDERS-.*", re.IGNORECASE),
        re.compile(r"(?P<kind>orders|bills)-(?:eu|us)\b.*$"),
        re.compile(r"^[^_].*-\w+"),
        re.compile("|"),
    ],
)
def test_stored_pattern_matches_as_the_users_does(pattern: re.Pattern[str]) -> None:
    topics = ["orders", "orders-eu", "orders-us.01", "orders-us.1", "bills-eu", "_orders-eu", "not-orders", "Orders-x"]
    assert matching_topics(pattern_text(pattern), topics) == [topic for topic in topics if pattern.fullmatch(topic)]
