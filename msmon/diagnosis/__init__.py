"""What ``msmon doctor`` looks at: one function per check.

Every check works with nothing in place (no daemon, no CANN, no rights) and returns a
``Finding``: what it saw, how bad that is, and what to do. ``checks`` lists them in order.
"""
