"""The classes of the ``mspti`` package, which call a Python function for each activity record."""
