"""The seeds at which the planted mistakes were found: each is looked for there first, and then in others.

What a run draws may change, and with it what it finds; then a later seed takes its place here.
"""

from __future__ import annotations

FOUND_AT = {
    "truncate-to-hw": 10,
    "isr-joined-at-hw": 22,
    "no-epoch-on-fetch": 4,
    "hw-without-pending-union": 13,
    "registration-race": 42,
    "unchecked-writes": 10,
    "no-lease": 27,
    "sequence-reset": 0,
    "duplicate-acked-at-once": 0,
    "older-is-duplicate": 214,
    "joins-with-deleted": 142,
    "start-in-an-epoch-row": 2,
    "state-before-its-effects": 28,
    "membership-ends-by-an-error": 12,
    "empty-disk-leads": 0,
    "ack-below-min-isr": 2,
    "cut-off-is-chosen": 9,
    "odd-node-stops-all": 193,
    "orphan-stops-all": 81,
    "notices-unchecked": 547,
    "endless-member-lease": 17,
    "commit-of-any-version": 8,
    "claim-by-force": 1,
    "commit-unfenced": 24,
    "reply-before-store": 30,
    "commit-of-any-generation": 253,
    "group-left-alone": 61,
    "delete-in-two-steps": 252,
    "offsets-of-a-former-topic": 30,
    "claims-of-a-former-topic": 8,
    "former-process-unfenced": 8,
    "share-not-passed-on": 8,
    "owner-node-left-behind": 327,
    "thread-ends-by-an-error": 152,
    "ticks-late": 11,
    "member-ends-in-silence": 5,
    "coordinates-though-cut-off": 1189,
    "cleared-by-name": 30,
    "offset-fetch-five-back": 8,
}
