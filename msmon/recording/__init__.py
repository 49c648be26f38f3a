"""From activity kinds to decoded batches.

A process has one MSPTI subscription. ``recorder`` holds it and refuses a second user; the
agent, ``Monitor`` and the ``mspti`` monitors all record through it. ``thread`` is a recording
with a thread of its own, for those that have none.
"""
