"""Detailed traces by the framework's own profiler.

``control`` takes the command, ``tracer`` has the state of the one trace of this process, and a
``…_backend`` drives one profiler. A profiler is only touched on the thread that steps.
"""
