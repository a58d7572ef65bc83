#!/bin/bash
# Epilog of slurmd (slurm.conf: Epilog=/etc/slurm/vramtrace/epilog.sh), as root on each node: removes the directory of the
# prolog. On a file system that all nodes share only the first node of the job does it. A failure here must not drain the
# node: the exit status is always 0.
SPOOL=${VRAMTRACE_SPOOL:-/var/spool/vramtrace}
first=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2> /dev/null | head -n 1)
if [ -z "$first" ] || [ "$first" = "${SLURMD_NODENAME:-$first}" ]; then
    rm -rf --one-file-system "${SPOOL:?}/${SLURM_JOB_ID:?}"
fi
exit 0
