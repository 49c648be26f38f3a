"""Records as JSON lines with msMonitor's keys, rotated by lines and files."""
