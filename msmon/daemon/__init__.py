"""The process that serves one node.

``service`` starts and stops it. ``broker`` is its loop: it receives a message, asks ``access``
who sent it and whether that peer may, and hands it on: streams of sessions to ``streams`` and
then ``outputs``, requests to ``monitoring`` or ``tracing``. The loop never waits for a disk or
a peer. The options of ``msmon-daemon`` are in ``msmon/commands/daemon``.
"""
