"""What an activity is.

Kinds, batches of records, markers, filters, durations, windows and statistics. Knows no C, no
socket and no file.
"""
