"""What the daemon does about a command: check it, choose processes, ask them, collect rows.

``requests`` runs a task for each command, ``questions`` answers without asking agents.
``command_base`` has what all commands share, ``monitoring`` and ``tracing`` what each adds.
``commander`` carries single commands to agents and their answers back. How a command is typed and
how its answer is shown belongs to ``msmon.commands``.
"""
