"""A shell with job control on a terminal of its own, and the keys that are pressed in it.

job_control.py SCENARIO COMMAND...   prints what the shell and the terminal's user see, a line an event
"""

import os
import pty
import select
import signal
import sys
import termios
import time

LIMIT_S = 30


class Session:
    """The leader of a new session, which starts one job."""

    def __init__(self, command):
        self.master, device = os.openpty()
        self.seen = b""
        attributes = termios.tcgetattr(device)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(device, termios.TCSANOW, attributes)
        name = os.ttyname(device)
        os.setsid()
        self.terminal = os.open(name, os.O_RDWR)
        os.close(device)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.environ.update(PS1="prompt ", TERM="dumb")
        self.job = os.fork()
        if self.job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(self.terminal, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            for number in range(3):
                os.dup2(self.terminal, number)
            os.execvp(command[0], command)

    def read_until(self, text):
        """What the job prints, up to `text`."""
        started = time.monotonic()
        while text.encode() not in self.seen:
            assert time.monotonic() - started < LIMIT_S, (text, self.seen)
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)
        before, self.seen = self.seen.split(text.encode(), 1)
        print("printed", text)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def change(self):
        """The next change of the job's state, as its shell sees it; the shell takes the terminal back."""
        started = time.monotonic()
        while True:
            pid, status = os.waitpid(self.job, os.WNOHANG | os.WUNTRACED)
            if pid:
                break
            # Read on, so that the job never waits for the terminal.
            if select.select([self.master], [], [], 0.01)[0]:
                self.seen += os.read(self.master, 4096)
            assert time.monotonic() - started < LIMIT_S, ("no change", self.seen)
        os.tcsetpgrp(self.terminal, os.getpgrp())
        if os.WIFSTOPPED(status):
            print("stopped by", os.WSTOPSIG(status))
        elif os.WIFSIGNALED(status):
            print("ended by", os.WTERMSIG(status))
        else:
            print("exited with", os.WEXITSTATUS(status))

    def foreground(self):
        os.tcsetpgrp(self.terminal, self.job)
        os.killpg(self.job, signal.SIGCONT)

    def background(self):
        os.killpg(self.job, signal.SIGCONT)


def interrupt(session):
    session.read_until("ready")
    session.press("\x03\n")  # a shell that was about to read runs its trap after the line
    session.change()


def quit_key(session):
    session.read_until("ready")
    session.press("\x1c")
    session.change()


def suspend(session):
    session.read_until("ready")
    for line in "one", "two":
        session.press("\x1a")
        session.change()
        session.foreground()
        session.press(line + "\n")
        session.read_until("got " + line)
    session.press("end\n")
    session.change()


def suspend_by_signal(session):
    """The job's group is stopped, as by `kill -STOP %1`."""
    session.read_until("ready")
    os.killpg(session.job, signal.SIGSTOP)
    session.change()
    session.foreground()
    session.press("one\nend\n")
    session.read_until("got one")
    session.change()


def read_in_background(session):
    session.read_until("ready")
    session.press("\x1a")
    session.change()
    session.background()
    session.change()
    session.foreground()
    session.press("one\nend\n")
    session.read_until("got one")
    session.change()


def interactive_shell(session):
    """A shell within: it makes groups of its own, and holds the terminal."""
    session.read_until("prompt")
    session.press("cat\n")
    session.press("within\n")
    session.read_until("within")
    session.press("\x1a")
    session.read_until("Stopped")
    session.read_until("prompt")
    session.press("fg\n")
    session.press("again\n")
    session.read_until("again")
    session.press("\x03")
    session.read_until("prompt")
    session.press("suspend -f\n")
    session.change()
    session.foreground()
    session.press("echo is $((1 + 1))\n")
    session.read_until("is 2")
    session.press("exit 3\n")
    session.change()


def resize(session):
    session.read_until("ready")
    termios.tcsetwinsize(session.terminal, (33, 44))
    session.read_until("size 33 44")
    session.press("end\n")
    session.change()


def stop_itself(session):
    """The command alone stops, without a key."""
    session.read_until("ready")
    session.change()
    session.foreground()
    session.press("one\nend\n")
    session.read_until("got one")
    session.change()


def close_terminal(command):
    """The command leads the session, as under sshd, and its terminal is closed."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    assert os.read(master, 5) == b"ready"
    os.close(master)
    print("ended with", os.waitpid(pid, 0)[1])


name = sys.argv[1]
if name == "close_terminal":
    close_terminal(sys.argv[2:])
else:
    globals()[name](Session(sys.argv[2:]))
