# Allocates from threads that run the same functions at the same time, while others begin and end and the
# garbage collector runs; prints what frames_situations.py prints. In a free-threaded build each thread
# runs a copy of the bytecode, and copies are made and freed meanwhile. Python 3.8 to 3.15.
import gc, threading

from taking import take, use_context

THREADS, ROUNDS = 12, 4


def warm(times):
    total = 0
    for n in range(times):
        total += n * n if n % 3 else len(str(n))
    return total


def deeper(depth, size, lines):
    warm(100)
    if depth:
        return deeper(depth - 1, size, lines)
    take(size, lines)
    for again in [1]:
        take(size + 512, lines)


def work(number, lines):
    use_context()
    for depth in range(5):
        deeper(depth, 1024 * (1 + number * 5 + depth), lines)


everything = []
for turn in range(ROUNDS):
    lists = [[] for _ in range(THREADS)]
    threads = [
        threading.Thread(target=work, args=(turn * THREADS + n, lists[n])) for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
        gc.collect()
    for thread in threads:
        thread.join()
    for lines in lists:
        everything.extend(lines)
for line in everything:
    print(line)
