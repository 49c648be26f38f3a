"""What a socket offers is asked without leaving a connection behind."""

from __future__ import annotations

import gc
import warnings

from msmon.bus.greeting import offered_mechanism


def test_where_nobody_listens_nothing_is_offered_and_no_socket_stays_open(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert offered_mechanism(f"ipc://{tmp_path}/absent.sock") == ""
        gc.collect()
    assert not [warning for warning in caught if warning.category is ResourceWarning]
