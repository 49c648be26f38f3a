"""From activity kinds to decoded batches.

A process has one MSPTI subscription: ``holder`` knows who has it, and a second user is refused.
The agent, ``Monitor`` and the ``mspti`` monitors all record through ``recorder``. ``recording``
has a thread of its own, for those that have none.
"""
