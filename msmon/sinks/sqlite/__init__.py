"""Records as SQLite databases that msprof-analyze reads, one per process and session.

``schema`` describes the tables, ``rows`` makes rows from batches, ``insert`` puts them into a
table, ``session`` is the file of one session.
"""
