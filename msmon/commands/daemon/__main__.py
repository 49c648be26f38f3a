"""``python -m msmon.commands.daemon``: how the unit files start the daemon."""

from msmon.commands.daemon.command import main

raise SystemExit(main())
