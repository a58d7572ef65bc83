"""The part `tensors` of the GPU check: PyTorch's blocks in the trace compared with PyTorch's own figures."""
import subprocess
import sys

import stacks


def lines(command, env):
    """Runs a command: the words of its lines by first word, its exit status, and the last line of stderr."""
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    found = {}
    for line in ended.stdout.splitlines():
        first, *rest = line.split()
        found.setdefault(first, []).append(rest)
    return found, ended.returncode, ended.stderr.strip().splitlines()[-1:]


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    program = [sys.executable, str(check.PROGRAMS / "torch_blocks.py")]
    agreement(check, program)
    profiler(check, program)
    if check.have("transformers"):
        print("SKIP tensors, names: no transformers")
        return
    names(check)


def agreement(check, program):
    check.table("PyTorch's blocks: the trace against torch.cuda.memory_stats and its totals at marked moments", "allocator | made: torch / trace | freed: torch / trace | totals that agree: allocated, reserved | hook's totals that differ from the blocks | out of memory: torch / trace | verdict")
    for mode in ("native", "expandable"):
        trace = check.TRACES / f"blocks-{mode}.vtrace"
        printed, status, error = lines([*program, mode], check.environment(trace, VRAMTRACE_MAX="unlimited"))
        if status or "STATS" not in printed:
            print(f"| {mode} | {check.fail(f'status {status} {error}')} | | | | | |")
            continue
        made, freed, ooms = (int(word) for word in printed["STATS"][0])
        start = check.start_ns(trace)
        marks = [tuple(int(word) for word in words) for words in printed["MARK"]]
        found = [check.totals(trace, at - start) for at, _, _ in marks]
        allocated = sum(mark[1] == ours[0] for mark, ours in zip(marks, found))
        reserved = sum(mark[2] == ours[1] for mark, ours in zip(marks, found))
        process = check.report(trace)[0]
        device, odd = process["devices"][0], any(process["inconsistencies"].values())
        torch, raised = device["torch"], device["oom_raised"]
        # After STATS the program only frees memory.
        good = torch["allocations"] == made and torch["frees"] >= freed and raised == ooms and not odd
        good = good and allocated == reserved == len(marks) and torch["disagreements"] == 0
        print(
            f"| {mode} | {made} / {torch['allocations']} | {freed} / {torch['frees']} | {allocated}, {reserved} of {len(marks)} "
            f"| {torch['disagreements']} | {ooms} / {raised} | {'same' if good else check.fail('')} |"
        )


def profiler(check, program):
    check.table("torch.profiler(profile_memory=True) reports the device's memory as without us", "| operators | bytes taken | bytes given back")
    seen = []
    for name, trace in (("bare", None), ("preloaded", check.TRACES / "profile.vtrace")):
        printed, status, error = lines([*program, "profile"], check.environment(trace))
        facts = dict(word.split("=") for word in printed.get("RESULT", [[]])[0])
        seen.append(facts)
        good = status == 0 and int(facts.get("taken", 0)) > 0 and seen[0] == facts
        print(f"| {name} | {facts.get('events')} | {facts.get('taken')} | {facts.get('freed')} |" + ("" if good else " " + check.fail(f"{status} {error}")))


def names(check):
    print("\n### What has no name at the peak of a training run\n")
    trace = check.TRACES / "names.vtrace"
    client = check.Held("tensors-names", [sys.executable, str(check.PROGRAMS / "gpt2_train.py")], check.environment(trace))
    if status := client.finish():
        print(check.fail(f"gpt2_train.py: {status}, see its log"))
        return
    found = check.holders(trace, "--at", "peak")

    def named(holder):
        # The place that `holders` shows. The allocator's own functions do not count as a name.
        lead = holder["lead"]
        return "" if lead is None else stacks.place(holder["frames"][lead])

    found = [holder for holder in found if named(holder) != "free in cache"]
    total = sum(holder["bytes"] for holder in found)
    nameless = lambda name: not name or "c10::" in name or "+0x" in name
    unnamed = sum(holder["bytes"] for holder in found if nameless(named(holder)))
    share = 100 * unnamed / max(total, 1)
    verdict = "ok" if total and share < 5 else check.fail("")
    print(f"{unnamed} of {total} bytes, {share:.2f} %: {verdict}")
    print("\n| bytes | the line that is shown |\n|---|---|")
    for holder in found[:12]:
        print(f"| {holder['bytes']} | {named(holder) or 'none'} |")
