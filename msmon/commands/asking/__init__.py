"""What every command that asks a daemon shares: its options, the request, and the answer shown.

``connection`` has the options that say which daemon, and sends one request to it; ``many_daemons``
sends it to several at once. ``parameters`` reads option values and the choice of processes, and
``paths`` makes the path of ``--log-file`` absolute. ``answers`` prints a reply and returns the exit
code; ``trace_text`` words what a trace is doing.
"""
