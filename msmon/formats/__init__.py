"""File formats that several rooms write: XLSX workbooks of activity records.

It stands apart because ``Monitor`` must not load the daemon's sinks, nor ``convert`` the
Monitor.
"""
