"""What an activity is, as pure data: no C, no socket, no file, no clock.

``layout`` describes each kind of record once. A ``Batch`` holds records of one kind as columns,
a ``Window`` the statistics of one interval. The other modules filter, pair, measure and merge
them.
"""
