#!/bin/bash
# Slurm task prolog, as the job's user before each task: lines "export NAME=value" go into
# the task's environment. In slurm.conf: TaskProlog=...
echo "export MSMONITOR_USE_DAEMON=1"
# a job_container/tmpfs plugin gives jobs a /tmp of their own; /run is the node's
echo "export MSMON_RUNTIME_DIR=/run/msmon"
exit 0
