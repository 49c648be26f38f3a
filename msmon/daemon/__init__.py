"""The process that serves one node.

``service`` starts and stops it. ``broker`` is its loop. It receives a message and asks
``access`` who sent it and whether that peer may. The stream of a session goes to ``streams``
and on to ``outputs``, a request to ``commands``. The loop never waits for a disk or a peer. The
options of ``msmon-daemon`` are in ``msmon/commands/daemon``.
"""
