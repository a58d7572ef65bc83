"""One short JSON object of the lines that `vramtrace run --json` appended, for the comment of a job.

    python3 job_comment.py RECORDS [UID]

Others read the comment with their tools, and the program of the job may write the file as it likes: it is opened without
following links, must be the user's, and is read up to a limit; of its values only numbers and words stay. Slurm refuses comments
of more than 1,024 bytes.
Exit status: 0 printed, 1 there is nothing to print.
"""

import json
import os
import re
import stat
import sys

MOST_BYTES = 64 << 20
# Of the comment. The keys that stand last are left out first.
LENGTH = 1000
WORD = re.compile(r"[a-z_]{1,32}\Z")


def lines(path, user):
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, how), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or (user is not None and about.st_uid != user):
            sys.exit(f"job_comment: {path} is not a file of user {user}")
        # The lines of jobs stand behind those of their processes.
        file.seek(max(0, about.st_size - MOST_BYTES))
        for line in file.read(MOST_BYTES).splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and str(found.get("schema")).startswith("vramtrace.run/"):
                yield found


def number(value):
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63 else None


def word(value):
    return value if isinstance(value, str) and WORD.match(value) else None


def text(value):
    """Of a file that anybody may write: no quotes, and nothing that a terminal or a shell takes for a command."""
    return re.sub(r"[^A-Za-z0-9 ._:/<=,()%+-]", "?", value)[:120] if isinstance(value, str) else None


def part(value, *keys):
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def parts(value, key):
    found = part(value, key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def summary(records):
    jobs = [record for record in records if record.get("record") == "job"]
    known = lambda *keys: [it for it in (number(part(job, *keys)) for job in jobs) if it is not None]
    failures = [job for job in jobs if word(part(job, "first_failure", "ended"))]
    failures.sort(key=lambda job: number(part(job, "first_failure", "unix_s")) or 0)
    first = failures[0] if failures else {}
    leaks = [job["worst_leak"] for job in jobs if word(part(job, "worst_leak", "verdict"))]
    worst = max(leaks, key=lambda leak: number(leak.get("bytes")) or 0, default={})
    gib = lambda values, how: round(how(values) / 2**30, 2) if values else None
    cards = [card for job in jobs for card in parts(job, "cards")]
    limits = [it for it in (number(card.get("total_bytes")) for card in cards) if it]
    return {
        "runs": len(jobs),
        "processes": sum(known("processes")),
        "peak_gib": gib(known("peak_bytes"), max),
        "card_gib": gib(limits, max),
        "unused": min(known("never_used_share"), default=None),
        "gib_hours": round(sum(known("held_gib_hours")), 4),
        "oom": word(part(first, "first_failure", "out_of_memory", "cause")),
        "failed": word(part(first, "first_failure", "ended")),
        "refused": sum(known("refused")),
        "leaks": sum(known("leaks")),
        "leak": text(worst.get("line")),
        "try": text(part(first, "advice", "conf") or part(first, "advice", "text")),
        "imbalance": max(known("imbalance", "highest_over_mean"), default=None),
    }


def main():
    user = int(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        records = list(lines(sys.argv[1], user))
    except OSError as error:
        sys.exit(f"job_comment: {error}")
    found = summary(records)
    if not found["runs"]:
        sys.exit(1)
    found = {key: value for key, value in found.items() if value is not None}
    as_text = lambda: json.dumps({"vramtrace": found}, separators=(",", ":"))
    while len(as_text()) > LENGTH:
        found.popitem()
    print(as_text())


if __name__ == "__main__":
    main()
