#!/bin/bash
# TaskEpilog (slurm.conf: TaskEpilog=/etc/slurm/vramtrace/task_epilog.sh), as the user, at the end of each task: the first task
# of each step, and the batch script at last, puts what the job's runs held into the job's Comment. `scontrol show job` and,
# where accounting stores it (AccountingStoreFlags=job_comment), `sacct -o comment` show it.
#
# Epilog, which root runs later, cannot: Slurm takes no update of a job that has finished.
SPOOL=${VRAMTRACE_SPOOL:-/var/spool/vramtrace}
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0
records=$SPOOL/$SLURM_JOB_ID/records.jsonl
[ -e "$records" ] || exit 0
# A comment that the user gave stays.
mine='{"vramtrace":'
there=$(scontrol -o show job "$SLURM_JOB_ID" | grep -o ' Comment=.*' | cut -d= -f2-)
case $there in "" | "(null)"* | "$mine"*) ;; *) exit 0 ;; esac
here=$(dirname "$(readlink -f "$0")")
if comment=$(python3 -I "$here/job_comment.py" "$records" "$(id -u)"); then
    scontrol update job="$SLURM_JOB_ID" Comment="$comment"
fi
exit 0
