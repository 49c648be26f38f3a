"""``python -m msmon.commands.daemon``, as the unit files start it."""

from msmon.commands.daemon.command import main

raise SystemExit(main())
