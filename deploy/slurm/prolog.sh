#!/bin/bash
# Slurm prolog, as root on each node: see that the daemon runs. In slurm.conf: Prolog=...
# Monitoring must never keep a job from starting: whatever happens, the exit code is 0.
if ! timeout 5 systemctl --quiet is-active msmon-daemon 2>/dev/null; then
    timeout 10 systemctl --no-block start msmon-daemon 2>/dev/null \
        || logger -t msmon "the daemon could not be started for job ${SLURM_JOB_ID:-?}"
fi
exit 0
