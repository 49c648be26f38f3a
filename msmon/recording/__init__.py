"""From activity kinds to decoded batches, by the one MSPTI subscription of a process.

The agent, ``Monitor`` and the ``mspti`` monitors share it.
"""
