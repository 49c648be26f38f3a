"""``python -m msmon.compat.dyno``: the same as ``msmon-dyno``, where no scripts are installed."""

import sys

from msmon.compat.dyno import main

sys.exit(main())
