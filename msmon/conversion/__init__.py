"""Conversion: exported files of one format become files of another.

``sources`` reads files back into batches of records, ``targets`` writes batches anew, and
``run`` moves the records from one to the other. A new format is one module in either folder.
Files that are converted may come from anybody, so a source believes nothing: every value is
checked for its type and range, and what reading costs is bounded by the size of the file.
"""
