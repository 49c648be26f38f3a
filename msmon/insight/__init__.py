"""From durations to a verdict: which rank is slow, why, since when, and what it costs the job.

Pure: windows of a job in, verdicts out. There is no socket, no file and no clock here; time comes
with the data. So the same code judges a live job, a recorded one and a simulated one.

==================  ==============================================================================
``job``             what is known of a job in one window, as columns
``positions``       which ranks do the same work, and may be compared
``own_work``        how long a rank needs for its own work, against its peers
``lateness``        who comes last to a collective, so that the others wait
``baselines``       what is normal for a series, and when it has changed
``links``           which group needs longer for the same collective
``hysteresis``      when a finding begins and when it is over
``cost``            how much of a step a late rank costs
``findings``        what one window shows of each kind of fault
``verdict``         the answer, as data and as a sentence
``judge``           keeps the history and puts all of this together, window by window
==================  ==============================================================================
"""
