"""From durations to a verdict: which rank is slow, why, since when, and what it costs the job.

Pure: windows of a job in, verdicts out. There is no socket, no file and no clock here; time comes
with the data. So the same code judges a live job, a recorded one and a simulated one.

==================  ==============================================================================
``job``             what is known of a job in one window, as columns
``positions``       which ranks do the same work, and may be compared
``own_work``        how long a rank needs for its own work, against its peers
``matching``        which rows of different ranks are the same collective
``votes``           who comes last to the collectives of a step, so that the others wait
``lateness``        who is late, step after step, and what that costs the job
``links``           how long groups need for their collectives, and which one needs longer
``baselines``       what is normal for a series, and when it has changed
``hysteresis``      when a finding begins and when it is over
``rank_history``    which ranks need longer than their peers, or than they did before
``facts``           all of this together, for one window
``rules``           which fault the facts show
``verdict``         the answer, as data
``wording``         the answer, as a sentence
``judge``           keeps the history and judges window by window
==================  ==============================================================================
"""
