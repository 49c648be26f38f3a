"""Questions about recorded data: exported files in, an answer out, in bounded memory.

===============  ================================================================================
``records``      the records of one rank, reduced to what an analysis needs, on disk
``steps``        where the steps of a rank begin: from its step markers, else inferred
``plan``         which steps make up each window, for all ranks alike
``clock``        where they lie in the time of one rank
``windows``      the same steps of all ranks, as windows that :mod:`msmon.insight` judges
``slow_ranks``   which ranks are slow, why and since when
===============  ================================================================================
"""
