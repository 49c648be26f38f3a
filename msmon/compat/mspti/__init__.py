"""The classes of the ``mspti`` package: a Python callback per activity record."""
