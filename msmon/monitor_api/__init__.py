"""The ``Monitor`` class: activity of this process in memory, without a daemon."""
