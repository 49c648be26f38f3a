"""The faults that a window shows, by rule.

=====  =====  ==================================================  ================================
late   slow   and                                                 fault
=====  =====  ==================================================  ================================
yes    yes                                                        slow device
yes    no     its device idles, or its host calls last longer     slow host
yes    no     it has waited in other groups                       none: it passes on a delay
no            all of its position need longer than the others     stage imbalance
no            nobody in particular is late, all wait              uneven data
no            a group needs longer for the same collective        slow link
no            steps take longer than before, nobody is to blame   degraded
=====  =====  ==================================================  ================================

``ranks`` has the first three, ``stages``, ``links`` and ``whole_job`` the others. ``amounts`` holds
what several of them reckon with.
"""
