"""The windows that came within the last minutes, kept for whoever looks at the jobs.

A viewer that starts, or starts again, learns what happened before. The windows stay as the frames
that came over the wire. Nothing here decodes them.
"""
