#!/usr/bin/env bash
# Tests examples/slurm with a real Slurm on this machine: a controller, a node, and jobs on the simulated driver, whose
# Comment is read back. Not part of CI.
#
#   tests/systems/test-slurm.sh
#
# Needs root, cargo, python3 and Debian's packages slurm-wlm and munge, which it installs. Its own configuration and
# daemons are in a temporary directory; only munged uses its usual places. Exit status: 0 all is right, 1 something is not,
# 2 it cannot be tried here.
# shellcheck disable=SC2016 # the jobs expand their own variables
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "test-slurm: run it as root: the prolog and the epilog are root's" >&2; exit 2; }
. scripts/need.sh
need slurmctld slurm-wlm
need munged munge
cargo build --workspace --quiet
bin=$PWD/target/debug
place=$(mktemp -d /tmp/vramtrace-slurm.XXXXXX)
chmod 0755 "$place"
daemons=()
finish() {
    for pid in "${daemons[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait 2> /dev/null || true
    rm -rf "$place"
}
trap finish EXIT
failed() { echo "test-slurm: $*" >&2; tail -n 20 "$place"/*.log >&2; exit 1; }

# Munge: the key and the socket of the package, unless it runs.
if ! munge -n > /dev/null 2>&1; then
    mkdir -p /run/munge /var/log/munge
    chown munge: /run/munge /var/log/munge
    [ -s /etc/munge/munge.key ] || mungekey --create
    setpriv --reuid=munge --regid=munge --clear-groups munged --foreground > "$place/munged.log" 2>&1 &
    daemons+=($!)
fi
cp -r examples/slurm "$place/vramtrace"
# The daemons give no variables of ours to prolog and epilog.
for script in prolog task_prolog task_epilog epilog; do
    sed -i "2i VRAMTRACE_SPOOL=$place/spool" "$place/vramtrace/$script.sh"
done
host=$(hostname -s)
mkdir "$place/state" "$place/slurmd" "$place/home"
cat > "$place/slurm.conf" << END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/slurmd
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
Prolog=$place/vramtrace/prolog.sh
Epilog=$place/vramtrace/epilog.sh
TaskProlog=$place/vramtrace/task_prolog.sh
TaskEpilog=$place/vramtrace/task_epilog.sh
MinJobAge=3600
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=10 State=UP
END
export SLURM_CONF=$place/slurm.conf
slurmctld -D -f "$SLURM_CONF" > "$place/ctld.out.log" 2>&1 &
daemons+=($!)
slurmd -D -f "$SLURM_CONF" > "$place/d.out.log" 2>&1 &
daemons+=($!)
for _ in $(seq 60); do sinfo -h -o %t 2> /dev/null | grep -q idle && break; sleep 0.5; done
sinfo -h -o %t | grep -q idle || failed "the node does not come up: $(sinfo -h -o '%t %E')"

# The user of the jobs is not root.
user=nobody
cp docs/programs/*.py "$place/home/"
chown -R "$user" "$place/home"
job() { # job NAME COMMAND [OPTION]: submits, waits for the end of the epilog, prints the comment
    printf '#!/bin/bash\n%s\n' "$2" > "$place/home/$1.sh"
    id=$(cd "$place/home" && setpriv --reuid="$user" --regid=nogroup --clear-groups env HOME="$place/home" \
        PATH="$bin:$PATH" sbatch --parsable --output "$1.out" ${3:+"$3"} "$1.sh")
    for _ in $(seq 240); do
        # The epilog has run when the job is no longer completing.
        state=$(scontrol -o show job "$id" | grep -o 'JobState=[A-Z]*')
        case $state in JobState=COMPLETED | JobState=FAILED) break ;; esac
        sleep 0.5
    done
    scontrol -o show job "$id" | sed -n 's/.* Comment=\({.*}\).*/\1/p'
}
has() { # has COMMENT EXPRESSION
    python3 -c 'import json, sys; it = json.loads(sys.argv[1])["vramtrace"]; sys.exit(not eval(sys.argv[2]))' "$1" "$2" ||
        failed "the comment is $1, where $2 should hold; $(cat "$place"/home/*.out)"
}
fine=$(job fine 'vramtrace run --simulate --cap 4GiB --json "$VRAM_RECORDS" python3 train.py 4')
echo "fine: $fine"
has "$fine" 'it["runs"] == 1 and it["processes"] == 1 and 0 < it["peak_gib"] < 4 and "oom" not in it and it["leaks"] == 0'
oom=$(job oom 'vramtrace run --simulate --cap 1GiB --json "$VRAM_RECORDS" python3 train.py 12')
echo "out of memory: $oom"
has "$oom" 'it["oom"] == "cap" and it["refused"] > 0 and "try" in it'
two=$(job two 'for _ in 1 2; do srun vramtrace run --simulate --json "$VRAM_RECORDS" python3 train.py 4; done')
echo "two steps: $two"
has "$two" 'it["runs"] == 2 and it["processes"] == 2'
# A file that the job made up: nothing of it but numbers and words is taken, and nothing through a link.
link=$(job link 'ln -s /etc/passwd "$VRAM_RECORDS"')
[ -z "$link" ] || failed "the comment of a link is $link"
forged=$(job forged 'echo "{\"schema\":\"vramtrace.run/3\",\"record\":\"job\",\"processes\":1e400,\"refused\":\"x\",\"first_failure\":{\"ended\":\"; reboot\"}}" > "$VRAM_RECORDS"')
has "$forged" 'it["runs"] == 1 and it["refused"] == 0 and "failed" not in it'
# The comment of the user stays.
own=$(job own 'vramtrace run --simulate --json "$VRAM_RECORDS" python3 train.py 4' '--comment={"mine":1}')
[ "$own" = '{"mine":1}' ] || failed "the user's comment became $own"
# What Slurm takes, and what we keep to.
long=$(printf 'x%.0s' $(seq 1000))
id=$(sbatch --parsable --chdir=/tmp --output=/dev/null --wrap 'sleep 60')
scontrol update job="$id" Comment="$long" || failed "Slurm refuses a comment of 1,000 bytes"
scancel "$id"
for _ in $(seq 20); do [ -z "$(ls "$place/spool")" ] && break; sleep 0.5; done
[ -z "$(ls "$place/spool")" ] || failed "the epilog left $(ls "$place/spool")"
echo "test-slurm: all passed, Slurm $(slurmctld -V)"
