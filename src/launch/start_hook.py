# Written by `vramtrace enable`; `vramtrace disable` removes it.
"""Starts this Python once more with vramtrace's recorder preloaded, where VRAMTRACE=1 asks for it.

The process keeps its pid, its open descriptors and its command line, so that `-c`, `-m` and a script
on stdin work. VRAMTRACE=0 switches it off. A failure is one line on stderr: the program then runs
without the recorder.
"""

LIBRARY = "@LIBRARY@"
ALWAYS = "@ALWAYS@"
# Holds the pid across the new start. A loader that drops LD_PRELOAD must not start it for ever.
_MARK = "_VRAMTRACE_START"
# Some Pythons read the files of an environment twice.
_called = False


def start():
    import os
    import sys

    global _called
    if _called:
        return
    _called = True

    def say(why):
        os.write(2, ("vramtrace: " + why + ": this program is not recorded\n").encode())

    again = os.environ.pop(_MARK, "") == str(os.getpid())
    if os.environ.get("VRAMTRACE", ALWAYS) != "1":
        return
    preloaded = os.environ.get("LD_PRELOAD", "")
    names = preloaded.replace(":", " ").split()
    if any(os.path.basename(name) == "libvramtrace.so" for name in names):
        return
    if again:
        return say("the loader dropped LD_PRELOAD (a setuid program, or one with capabilities)")
    if not os.path.isfile(LIBRARY):
        return say(LIBRARY + " is gone, `vramtrace enable` names its new place")
    try:
        # A program that embeds Python has an executable that is not Python's.
        if not os.path.samefile(sys.executable, "/proc/self/exe"):
            return say("this program embeds Python, start it with `vramtrace run`")
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")[:-1]
        environment = dict(os.environ)
        environment[_MARK] = str(os.getpid())
        environment["LD_PRELOAD"] = LIBRARY + (":" + preloaded if preloaded else "")
        environment.setdefault("NVTX_INJECTION64_PATH", LIBRARY)
        os.execve(sys.executable, words, environment)
    except OSError as error:
        say("cannot start again with LD_PRELOAD (" + str(error) + ")")
