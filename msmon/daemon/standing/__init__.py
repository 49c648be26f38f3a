"""Standing orders: monitoring that holds for every selected process, those to come included.

``npu-monitor start --always`` gives one, ``stop`` ends it, and it outlives ranks, jobs and the
daemon. ``Orders`` says which order holds for a process, ``Follower`` has the processes follow, and
``StandingCommands`` changes the orders when a command says so.
"""
