"""The parts `fix` and `story` of the GPU check: a training run that is out of memory under a cap is explained, and ends under
it with the line that is proposed; then the batch that fits is predicted from two small ones, and tried.
"""
import json
import re
import shutil
import subprocess
import sys

# train.py ends under the first of these caps, MiB, that it does not fit in.
CAPS = (14786, 14530, 14274, 14018)
OUT_OF_MEMORY = 3
# For the prediction: bytes that a process of batches.py may take, and the recorded batches.
CARD = "24GiB"
MODEL = "gpt2"
RECORDED = (4, 6)


class Story:
    """`check`: the module check.py, which holds what all parts share."""

    def __init__(self, check):
        self.check = check
        self.place = check.TRACES / "story"
        self.place.mkdir(exist_ok=True)
        for program in ("train.py", "batches.py"):
            shutil.copy(check.PROGRAMS / program, self.place / program)

    def vramtrace(self, name, *words, **env):
        """The exit status, stdout and stderr; both also go to a log."""
        kept = {name: value for name, value in self.check.environment().items() if not name.startswith("PYTORCH_")}
        command = [self.check.BIN / "vramtrace", *words]
        ended = self.check.run(f"story-{name}", command, dict(kept, **env), cwd=self.place, stdin=subprocess.DEVNULL)
        return ended.returncode, ended.stdout, ended.stderr

    def train(self, name, cap, *options, **env):
        words = ("--cap", f"{cap}MiB", "--out", f"{name}.vtrace", *options, "--", sys.executable, "train.py")
        return self.vramtrace(name, "run", *words, **env)

    def batch(self, name, batch, *options):
        return self.vramtrace(name, "run", *options, "--", sys.executable, "batches.py", MODEL, batch)

    def out_of_memory(self):
        """The first cap, MiB, that train.py does not fit in, its trace, and what was printed."""
        for cap in CAPS:
            status, _, printed = self.train(f"before-{cap}", cap)
            if status:
                print(f"$ vramtrace run --cap {cap}MiB python train.py\nstatus {status}")
                return (cap, f"before-{cap}.vtrace", printed) if status == OUT_OF_MEMORY else None
        return None

    def said(self, ok, text, log):
        print(text if ok else self.check.fail(f"{text}, see story-{log}.log"))
        return ok


def fixed(story):
    """Why it was out of memory, the line to paste, and the same by one option. False: it stopped."""
    found = story.out_of_memory()
    if not story.said(found is not None, "out of memory", f"before-{CAPS[-1]}"):
        return False
    cap, trace, printed = found
    status, shown, _ = story.vramtrace("oom", "oom", "--short", trace)
    print(f"$ vramtrace oom --short {trace}\n{shown}", end="")
    line = re.search(r"^\s*try\s+(PYTORCH_[A-Z_]+)=(\S+)", shown, re.MULTILINE)
    if not story.said(status == 0 and line is not None, "it proposes a setting", "oom"):
        return False
    variable, setting = line[1], line[2].strip("'")
    story.said(f"{variable}={setting}" in printed, "so does the run itself", f"before-{cap}")
    print(f"$ {variable}={setting} vramtrace run --cap {cap}MiB python train.py")
    status, _, _ = story.train("pasted", cap, "--oom-report", "off", **{variable: setting})
    return story.said(status == 0, f"status {status}", "pasted")


def predicted(story):
    """The largest batch that fits and the first that does not, and whether that is so."""
    traces = [f"{MODEL}_b{batch}.vtrace" for batch in RECORDED]
    for batch, trace in zip(RECORDED, traces):
        status, _, _ = story.batch(f"recorded-{batch}", batch, "--out", trace)
        if not story.said(status == 0, f"$ vramtrace run --out {trace} python batches.py {MODEL} {batch}", f"recorded-{batch}"):
            return
    words = ("fits", *traces, "--recorded", f"batch={','.join(map(str, RECORDED))}", "--card", CARD)
    _, shown, _ = story.vramtrace("fits-text", *words)
    print(f"$ vramtrace {' '.join(words)}\n{shown}", end="")
    status, shown, _ = story.vramtrace("fits", *words, "--json")
    if not story.said(status == 0, f"with --json: status {status}", "fits"):
        return
    setting = next(one for one in json.loads(shown)["settings"] if one["conf"] == "default")
    fits, not_any_more = setting["fits"], setting["does_not_fit"]
    print(f"batch {fits} fits, {not_any_more} does not (default settings, {CARD})\n\n| batch | predicted | status under a cap of {CARD} |\n|---|---|---|")
    for batch, wanted, words in ((fits, 0, "fits"), (not_any_more, OUT_OF_MEMORY, "does not fit")):
        status = story.batch(f"tried-{batch}", batch, "--cap", CARD, "--out", f"tried-{batch}.vtrace")[0] if batch else "not run"
        print(f"| {batch} | {words} | {status if status == wanted else story.check.fail(f'{status}, expected {wanted}, see story-tried-{batch}.log')} |")


def fix(check):
    print("\n### Out of memory, why, and the setting that fixes it\n")
    fixed(Story(check))


def section(check):
    print("\n### Out of memory, why, the setting that fixes it; and which batch fits, from two small ones\n")
    story = Story(check)
    fixed(story)
    print()
    predicted(story)
