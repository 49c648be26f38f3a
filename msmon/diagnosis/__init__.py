"""What ``msmon doctor`` looks at: one function per check, each works with nothing in place."""
