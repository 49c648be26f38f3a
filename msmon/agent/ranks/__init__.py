"""Who this process is: whether it is a rank, of which job, and in which parallel groups."""
