"""The public sink protocol (``base``), the catalog of installed sinks, and msmon's own.

A sink is the class that writes, one file or folder each. Its queue, thread and process are the
daemon's matter: ``msmon/daemon/outputs``.
"""
