"""A job judged while it runs: the windows of its processes in, verdicts out.

Windows come from the daemons of one or many hosts (``feed``). Those of one job that belong to the
same time are put together (``assembly``) into what :mod:`msmon.insight` judges.

==================  ==============================================================================
``seen``            a window, and whose it is
``typical``         how long an operator typically takes, from the histogram of a window
``columns``         the windows of one rank as rows of the tables that are judged
``alignment``       which collectives of two ranks are the same, when each counts its own
``collectives``     the collectives of a step, of all ranks together
``assembly``        the windows of all ranks of a job, slot by slot
``job_watch``       a job that is watched: windows in, events about its verdicts out
``watcher``         all jobs that the daemons know of
``feed``            the windows that daemons have, asked for again and again
==================  ==============================================================================
"""
