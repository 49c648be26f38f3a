"""Where training steps are counted: the counter, and the frameworks that advance it."""
