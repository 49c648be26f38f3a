"""A step of a parallel training job: who computes, who waits for whom, and for how long.

Thousands of ranks at once, as numpy arrays. It knows nothing of records: it says when each
collective starts and ends on each rank, and how long each kernel lasts.

=============  ===================================================================================
``layout``     which rank holds which part of the model and of the data, and the groups they form
``shape``      what a step computes and sends, and how much its times vary while all is well
``conditions`` how the times of some steps differ from what is usual
``faults``     what can be planted, each by name
``schedule``   the times of some steps
``pipeline``   in which order a stage computes its micro-batches
=============  ===================================================================================
"""

from __future__ import annotations

from msmon.simulation.parallel_job.faults import FAULTS, Planted, planted
from msmon.simulation.parallel_job.layout import Axis, ParallelLayout
from msmon.simulation.parallel_job.schedule import ParallelJob, StepTimes
from msmon.simulation.parallel_job.shape import EVEN, UNEVEN, JobShape, Noise

__all__ = [
    "EVEN",
    "FAULTS",
    "UNEVEN",
    "Axis",
    "JobShape",
    "Noise",
    "ParallelJob",
    "ParallelLayout",
    "Planted",
    "StepTimes",
    "planted",
]
