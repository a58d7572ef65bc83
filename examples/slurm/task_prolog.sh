#!/bin/bash
# TaskProlog (slurm.conf: TaskProlog=/etc/slurm/vramtrace/task_prolog.sh): what it prints is set in the job's environment.
# A job then writes `vramtrace run --json "$VRAM_RECORDS" python train.py`.
SPOOL=${VRAMTRACE_SPOOL:-/var/spool/vramtrace}
echo "export VRAM_RECORDS=$SPOOL/$SLURM_JOB_ID/records.jsonl"
