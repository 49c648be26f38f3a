"""``msmon watch``: jobs judged while they run, and somebody told of the verdicts.

==================  ==============================================================================
``command``         the command line, and the parts put together
``options``         what can be set, on the command line and in ``[watch]`` of daemon.toml
``loop``            one round: ask, judge, tell, act
``notices``         which verdicts are to be told: begun, changed, cleared, traced
``sight``           what can't be seen, told when that changes
``registered``      processes that are registered and not monitored
``printing``        notices as text or JSON lines
``delivery``        a queue and a thread for an action that takes time
``on_verdict``      the command that gets each verdict
``webhook``         the address that gets each verdict
``tracing``         traces of the ranks of a verdict, and how many at most
``chosen_ranks``    which ranks these are
``unit``            the files that systemd needs
==================  ==============================================================================
"""
