"""Statistics of one process: records in, a window per report interval out."""
