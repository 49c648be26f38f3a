"""Outputs: sinks with their queues, their threads or processes, and each session's state in them.

The way of a message, from the broker's loop to a file::

    Streams ─▶ Outputs ─▶ Output (queue, thread, sessions) ─▶ SinkHost ─▶ Sink
                                                               │ in the thread itself, or
                                                               └ over a socket in a process

What travels is a :mod:`delivery <msmon.daemon.outputs.delivery>`; acknowledgements come back
once the sink has committed. Files at paths that users name are written by one process per
owner, which has that user's rights and no others (:mod:`rights <msmon.daemon.outputs.rights>`).
"""
