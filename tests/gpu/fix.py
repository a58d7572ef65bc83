"""The part `fix` of the GPU check: a training run that is out of memory under a cap, and the same run with the
setting that its verdict proposes."""
import re
import shutil
import subprocess
import sys

# train.py ends under the first of these caps, MiB, that it does not fit in.
CAPS = (14786, 14530, 14274, 14018)
OUT_OF_MEMORY = 3


def run(check, place, cap, name, setting):
    """The exit status of train.py under the command, and what the command printed."""
    command = [str(check.BIN / "vramtrace"), "run", "--cap", f"{cap}MiB", "--out", str(place / f"{name}.vtrace"), "--"]
    env = check.environment(**dict([setting.split("=", 1)] if setting else []))
    ended = subprocess.run([*command, sys.executable, "train.py"], cwd=place, env=env, capture_output=True, text=True)
    (check.LOGS / f"fix-{name}.log").write_text(ended.stdout + ended.stderr)
    return ended.returncode, ended.stdout + ended.stderr


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n### A run that is out of memory, and again with the setting of its verdict\n")
    place = check.TRACES / "fix"
    place.mkdir()
    shutil.copy(check.PROGRAMS / "train.py", place / "train.py")
    for cap in CAPS:
        status, text = run(check, place, cap, f"before-{cap}", None)
        if status:
            break
    if status != OUT_OF_MEMORY:
        print(check.fail(f"train.py under {cap} MiB: status {status}, see fix-before-{cap}.log"))
        return
    found = re.search(r"^\s*try\s+(PYTORCH_[A-Z_]+=[^\s,]+)", text, re.MULTILINE)
    if found is None:
        print(check.fail(f"the verdict under {cap} MiB proposes no setting, see fix-before-{cap}.log"))
        return
    setting = found[1]
    status, _ = run(check, place, cap, f"after-{cap}", setting)
    verdict = "it ends with status 0" if status == 0 else check.fail(f"status {status}, see fix-after-{cap}.log")
    print(f"under {cap} MiB: status {OUT_OF_MEMORY}, out of memory; with {setting}: {verdict}")
