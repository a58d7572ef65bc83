"""A running program of the GPU check: commands on its stdin, answers on its stdout."""
import subprocess
import threading
import time


class Talk:
    """Lines that it prints unasked are queued. All that it prints is also in `log`, an open file."""

    def __init__(self, log, command, env):
        self.log, pipe = log, subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self.pid, self.queue, self.came = self.process.pid, [], threading.Condition()
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            self.log.write(line)
            with self.came:
                self.queue.append(line.strip())
                self.came.notify_all()
        with self.came:
            self.queue.append(None)
            self.came.notify_all()

    def next(self, end=None):
        """The next line; None at the end of the program. `end`: of time.monotonic()."""
        with self.came:
            while not self.queue:
                if not self.came.wait(None if end is None else end - time.monotonic()):
                    raise RuntimeError(f"{self.log.name}: no such line in time")
            return self.queue.pop(0) if self.queue[0] is not None else None

    def until(self, right, seconds=60):
        """The next line for which `right` is true; the lines before it are dropped. `seconds`: None waits for ever."""
        end = None if seconds is None else time.monotonic() + seconds
        while (line := self.next(end)) is not None:
            if right(line):
                return line
        raise RuntimeError(f"{self.log.name}: the program ended: status {self.process.wait()}")

    def say(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def ask(self, *words):
        self.say(*words)
        return self.until(lambda _: True)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.listener.join(5)

    def end(self, seconds=30):
        """Sends an empty line, and returns the exit status; kills it if it goes on."""
        try:
            self.say()
            self.process.stdin.close()
            self.process.wait(seconds)
        except (BrokenPipeError, ValueError, subprocess.TimeoutExpired) as error:
            self.log.write(f"end: {error!r}\n")
            self.process.kill()
        self.listener.join(5)
        self.log.flush()
        return self.process.wait()
