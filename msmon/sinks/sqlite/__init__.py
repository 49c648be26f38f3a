"""Records as SQLite databases that msprof-analyze reads, one per process and session."""
