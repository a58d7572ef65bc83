# Calls functions whose code objects are freed, so that others are made at their addresses: with the same name, file
# and first line, and with their calls at the same instructions of other lines. Prints what frames_situations.py
# prints, and at last how often an address was used again. Python 3.8 to 3.15.
import json, threading

from taking import take, use_context

THREADS, ROUNDS = 4, 60
# Longer than a few words: its line table is, too.
BEFORE, AFTER = "    a = 1\n" * 30, "    b = 1\n" * 30


def made(number):
    # The call is one line further down in half of the functions, and all else where it is in the others. Two addresses
    # may take turns.
    call = ["    call()\n\n", "\n    call()\n"][number // 2 % 2]
    # Mostly the last call of one function and the first call of the next are at one instruction.
    last = ["", "    call()\n"][number % 4 == 3]
    return "def work(call):\n" + BEFORE + call + AFTER + last


def once(number, call, places):
    names = {}
    exec(compile(made(number), "made.py", "exec"), names)
    work = names.pop("work")  # which would keep itself alive
    places.append(id(work.__code__))
    if number % 3 == 2:
        # Through a frame of its own that stays.
        deeper(work, call)
    else:
        work(call)


def deeper(work, call):
    work(lambda: call())


def work(number, lines, places):
    use_context()
    sizes = iter(range(ROUNDS * 2))

    def call():
        take(512 * (1 + number * ROUNDS * 2 + next(sizes)), lines)

    for turn in range(ROUNDS):
        once(turn, call, places)


results = [([], []) for _ in range(THREADS)]
threads = [threading.Thread(target=work, args=(n, *results[n])) for n in range(THREADS)]
for thread in threads[:1]:  # alone: addresses are soon used again
    thread.start()
    thread.join()
for thread in threads[1:]:
    thread.start()
for thread in threads[1:]:
    thread.join()
again = sum(len(places) - len(set(places)) for _, places in results)
print("\n".join(line for lines, _ in results for line in lines))
print(json.dumps({"again": again}))
