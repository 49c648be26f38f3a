"""``msmon nputrace``: ask for a trace, and wait for its end."""
