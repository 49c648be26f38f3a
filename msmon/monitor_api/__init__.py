"""The ``Monitor`` class: activity of this process in memory, without a daemon.

It loads no zmq: who only uses ``Monitor`` needs no socket.
"""
