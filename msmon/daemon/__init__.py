"""The process that serves one node.

``service`` starts and stops it. ``broker`` is its loop: ``transport`` reads a message, ``access``
says who sent it and whether that peer may, ``connections`` what it costs. What agents say goes to
``agents``, and the stream of a session from there to ``streams`` and ``outputs``. What clients ask
goes to ``commands``. The loop never waits for a disk or a peer. The options of ``msmon-daemon``
are in ``msmon/commands/daemon``.
"""
