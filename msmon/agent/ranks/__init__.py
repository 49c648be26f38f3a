"""Who this process is: whether it is a rank, of which job, and in which parallel groups.

It is read from the environment, ``/proc`` and the framework; no MSPTI, no socket.
"""
