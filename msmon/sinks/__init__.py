"""The public sink protocol, the catalog of installed sinks, and each of msmon's own."""
