"""``msmon top``: what the jobs do now, full screen or as text.

What is shown is data (``model``). The screen only draws it, and keys only change what is looked at,
so both can be tested without a terminal.

=============  ===================================================================================
``command``    the options
``model``      the rows: jobs, groups, ranks, operators, durations
``job_times``  how an operator did before, and on the peers of a rank
``build``      the windows and states that came, as jobs and ranks
``details``    the groups of a job, the operators of a rank, the durations of an operator
``gathering``  the thread that asks the daemons
``columns``    the columns of each table
``once``       all of it as text or JSON
``tracing``    the trace of the marked ranks
``screen``     the full screen
=============  ===================================================================================
"""
