#!/bin/bash
# Slurm epilog, as root on each node: remove shared memory that killed ranks left behind,
# so that the next job on this node is not held up by it. In slurm.conf: Epilog=...
if [[ -n "${SLURM_JOB_USER-}" ]]; then
    timeout 20 runuser -u "$SLURM_JOB_USER" -- msmon doctor --fix --json >/dev/null 2>&1 || true
fi
exit 0
