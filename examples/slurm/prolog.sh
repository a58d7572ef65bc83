#!/bin/bash
# Prolog of slurmd (slurm.conf: Prolog=/etc/slurm/vramtrace/prolog.sh), as root on each node: a directory of the job's user
# for the lines of `vramtrace run --json`. Put SPOOL on a file system that all nodes share if jobs have several.
set -eu
SPOOL=${VRAMTRACE_SPOOL:-/var/spool/vramtrace}
install -d -m 0711 "$SPOOL"
# Nobody but root makes anything in it, so the job's directory is no link of somebody else's.
[ "$(stat -c %u "$SPOOL")" = 0 ] || { echo "prolog: $SPOOL is not root's" >&2; exit 0; }
install -d -m 0700 -o "$SLURM_JOB_UID" "$SPOOL/$SLURM_JOB_ID"
