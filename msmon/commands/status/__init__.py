"""``msmon status``: the table of processes, and the details of one."""
