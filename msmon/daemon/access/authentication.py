"""Who is on the other side of a connection, and what they may do.

A peer can't choose who it is, because nothing here comes from its messages. For a local peer the
kernel tells libzmq the uid, gid and pid (libzmq's peer address is ``localhost:uid:gid:pid``). A
remote peer is known by its CURVE key, which must be on the allow-list.
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from msmon.bus.messages import Message
from msmon.daemon.access.allow_list import AllowList, fingerprint
from msmon.daemon.access.roles import ROLES_FOR, Role

_log = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_ALLOWED, _DENIED = b"200", b"400"

LOCAL_PEERS = 4096
"""So many local peers are remembered by their addresses, since each message asks for its peer."""


@dataclass(frozen=True)
class Peer:
    """The other side of a connection. ``uid``, ``pid`` and ``gid``: -1 for a remote one."""

    role: Role
    name: str
    """For logs and answers: "uid 1000", or the name of the key."""
    credential: str
    """What proves it: the uid, or the public key. Two peers with the same one are one user."""
    uid: int = -1
    pid: int = -1
    gid: int = -1

    @property
    def owner(self) -> str:
        """The user whose share its work counts against. Every peer of a user has one name."""
        return self.name

    def may_send(self, kind: type[Message]) -> bool:
        """Return whether this peer may send messages of this type."""
        return self.role in ROLES_FOR.get(kind, frozenset())

    def may_command(self, registrant: Peer) -> bool:
        """Return whether this peer may command a process that ``registrant`` registered."""
        if self.role is Role.OPERATOR:
            return True
        return self.role is Role.USER and self.uid == registrant.uid

    def may_watch(self, registrant: Peer) -> bool:
        """Return whether this peer may see the statistics of a process: viewers see those of all.

        Names of operators are in them, but no paths and no command lines.
        """
        return self.role is Role.VIEWER or self.may_command(registrant)


class Authenticator:
    """Decides on every connection (ZAP, RFC 27) and names the peer behind every message.

    The broker's loop writes its state. Another thread may refresh ``allow_list``.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        allow_list: AllowList,
        local_users: bool = False,
        insecure: bool = False,
    ) -> None:
        self.allow_list = allow_list
        self._local_users = local_users
        self._insecure = insecure
        self.refused_count = 0
        """Connections refused so far."""
        self._own_uid = os.geteuid()
        self._local_peer = functools.lru_cache(LOCAL_PEERS)(self._peer_at)
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ADDRESS)

    def answer_requests(self) -> None:
        """Answer what libzmq asks. Call when ``socket`` is readable. Never waits."""
        while self.socket.poll(0):
            frames = self.socket.recv_multipart()
            request_id = frames[1] if len(frames) > 1 else b""
            peer = self._peer_asking(frames)
            if peer is None:
                self.refused_count += 1
                _log.warning("connection refused: %s", _who(frames))
                reply = (_DENIED, b"not allowed", b"")
            else:
                reply = (_ALLOWED, b"OK", peer.credential.encode())
            self.socket.send_multipart([_ZAP_VERSION, request_id, *reply, b""])

    def _peer_asking(self, frames: list[bytes]) -> Peer | None:
        if len(frames) < 6 or frames[0] != _ZAP_VERSION:
            return None
        address, mechanism = frames[3].decode("ascii", "replace"), frames[5]
        if mechanism == b"CURVE" and len(frames) == 7 and not self._insecure:
            return self.peer(address, z85.encode(frames[6]).decode())
        if mechanism == b"NULL" and self._insecure:
            return self.peer(address, "")
        return None

    def peer(self, address: str, credential: str) -> Peer | None:
        """Return the peer with this libzmq address and ZAP user id; None if it is not allowed.

        The broker calls this for every message, so that a key that was removed from the
        allow-list also loses its open connections.
        """
        if address.startswith("localhost:"):
            return self._local_peer(address)
        if self._insecure:
            return Peer(Role.OPERATOR, f"anybody at {address}", "")
        allowed = self.allow_list.get(credential)
        if allowed is None:
            return None
        return Peer(allowed.role, f"key {allowed.name}", credential)

    def is_operator(self, owner: str) -> bool:
        """Return whether an ``owner`` as in :attr:`Peer.owner` may command every process."""
        if owner in ("uid 0", f"uid {self._own_uid}"):
            return True
        kind, _, name = owner.partition(" ")
        return kind == "key" and self.allow_list.is_operator(name)

    def _peer_at(self, address: str) -> Peer | None:
        """Return the local peer with a libzmq address. What it says never changes."""
        try:
            uid, gid, pid = (int(part) for part in address.split(":")[1:])
        except ValueError:
            return None
        if uid in (0, self._own_uid):
            return Peer(Role.OPERATOR, f"uid {uid}", f"uid {uid}", uid, pid, gid)
        if self._local_users:
            return Peer(Role.USER, f"uid {uid}", f"uid {uid}", uid, pid, gid)
        return None

    def close(self) -> None:
        """Close the ZAP socket. libzmq accepts no connection without it."""
        self.socket.close()


def _who(frames: list[bytes]) -> str:
    """Return a sentence for the log: which address or key was refused."""
    address = frames[3].decode("ascii", "replace") if len(frames) > 3 else "?"
    if address.startswith("localhost:"):
        return f"local user {address} may not connect"
    if len(frames) < 7:
        return f"{address} shows no key"
    return f"the key {fingerprint(z85.encode(frames[6]).decode())} of {address} is not allowed"
