"""The checks of ``msmon doctor``: one function for each.

A check gets the ``Surroundings`` and returns a ``Finding``: what it saw, how bad that is, and
what to do. It also works where the daemon, CANN or access rights are missing, because doctor
is run when something is missing. ``checks`` lists all of them in the order of the output.
"""
