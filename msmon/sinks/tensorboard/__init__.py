"""Windows as TensorBoard scalars: one run per host, rank and device."""
