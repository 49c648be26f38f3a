"""``msmon demo``: a private daemon, simulated ranks, and the table that shows the slow one."""
