"""A user, or a key, who sends as much as it can: it uses up its own share and nobody else's."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("floods")

BY_USER = [
    "flood_hellos",
    "flood_sessions",
    "flood_notes",
    "flood_heartbeats",
    "flood_requests",
    "flood_status",
    "flood_versions",
    "flood_windows",
    "flood_refused",
    "flood_rubbish",
    "huge_messages",
    "connect_many",
    "half_handshakes",
    "claim_routing_ids",
]


@pytest.mark.parametrize("name", BY_USER)
def test_a_user_disturbs_nobody(victim, attack, name):
    with victim.recording():
        attack(name)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("agent", "flood_hellos"),
        ("agent", "flood_sessions"),
        ("agent", "flood_notes"),
        ("viewer", "flood_status"),
        ("viewer", "flood_refused"),
        ("viewer", "ask_windows"),
        ("viewer", "connect_many"),
    ],
)
def test_a_key_disturbs_nobody(victim, attack, role, name):
    with victim.recording():
        attack(name, role=role)
