#!/usr/bin/env python3
"""Programs and libraries of unusual ELF shapes, run with and without the library: exit status and output must agree.

    tests/elf/elf-shapes.py BIN_DIR [--count N] [--only TEXT] [--keep DIR]

BIN_DIR holds libvramtrace.so and libvramtrace_sim.so. --count takes N shapes, evenly spread over all of them; --only those
whose name contains TEXT; --keep leaves the files in DIR. Needs gcc and binutils; upx-ucl if packed programs are wanted.
Prints a line for each shape that differs, then a summary. Exit status: 0 none differs, 1 one does, 2 wrong usage.
"""
import argparse
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from elf_changes import CHANGES, Elf

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern char **environ;
int shape_call(int);
__attribute__((weak)) int exported_and_weak;
static int zero[1024];
int main(int argc, char **argv) {
    char **here = environ;
    char *copy = strdup(argv[1]);
    int marked = 0;
    for (; *here; here++) marked += !strncmp(*here, "SHAPE=", 6);
    printf("%d %s %d %d\n", argc, copy, marked, shape_call(zero[3] + 5));
    free(copy);
    return 7;
}
"""
PLAIN = "int shape_call(int n) { return n + 1; }\n"
DRIVER = r"""
typedef unsigned long long P;
extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(P *, unsigned long), cuMemFree_v2(P);
__attribute__((noinline)) static int one(unsigned long bytes) {
    P p = 0;
    int failed = cuMemAlloc_v2(&p, bytes);
    return failed ? failed : cuMemFree_v2(p);
}
int shape_call(int n) {
    void *context = 0;
    int device = 0, failed = cuInit(0) + cuDeviceGet(&device, 0) + cuDevicePrimaryCtxRetain(&context, device);
    failed += cuCtxSetCurrent(context);
    for (int i = 0; i < n; i++) failed += one(4096ul << i);
    return failed;
}
"""
# A program without a C library: writes a line and ends with status 7.
ALONE = r"""
static long call(long number, long a, long b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
__attribute__((used)) void begin(void) { call(1, 1, (long)"alone\n", 6); call(60, 7, 0, 0); }
__asm__(".globl _start\n_start: and $-16, %rsp\n call begin\n");
"""
# Starts the program that follows it in its file, from memory.
UNPACK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv) {
    char bytes[4096];
    long start = 0, got;
    int from = open("/proc/self/exe", O_RDONLY), to = memfd_create("program", 0);
    lseek(from, -(long)sizeof start, SEEK_END);
    if (read(from, &start, sizeof start) != sizeof start) return 1;
    lseek(from, start, SEEK_SET);
    while ((got = read(from, bytes, sizeof bytes)) > 0)
        if (write(to, bytes, got) != got) return 2;
    fexecve(to, argv, environ);
    return 3;
}
"""
ALONE_32 = r"""
__asm__(".globl _start\n_start:\n mov $4,%eax\n mov $1,%ebx\n mov $text,%ecx\n mov $6,%edx\n int $0x80\n"
        " mov $1,%eax\n mov $7,%ebx\n int $0x80\n.data\ntext: .ascii \"alone\\n\"\n");
"""
MANY = "".join(f"int exported_{n}(void) {{ return {n}; }}\n" for n in range(500))

# Flags of the linker, for a program and for a library.
LINKS = {
    "default": [],
    "sysv-hash": ["-Wl,--hash-style=sysv"],
    "both-hashes": ["-Wl,--hash-style=both"],
    "bind-now": ["-Wl,-z,now"],
    "lazy": ["-Wl,-z,lazy", "-Wl,-z,norelro"],
    "relr": ["-Wl,-z,pack-relative-relocs"],
    "stripped": ["-s"],
    "one-segment": ["-Wl,-z,noseparate-code"],
    "2-mib-pages": ["-Wl,-z,max-page-size=0x200000"],
    "64-kib-pages": ["-Wl,-z,max-page-size=0x10000", "-Wl,-z,common-page-size=0x10000"],
    "other-address": ["-Wl,-Ttext-segment=0x10000000"],
    "high-address": ["-Wl,-Ttext-segment=0x600000000000"],
    "exports-all": ["-rdynamic", "many.c"],
    "no-build-id": ["-Wl,--build-id=none"],
    "no-eh-frame-header": ["-Wl,--no-eh-frame-hdr"],
    "no-unwind-tables": ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    "large-code": ["-mcmodel=large"],
    "huge-zero": ["huge.c"],
    "symbolic": ["-Wl,-Bsymbolic"],
    "relocations-kept": ["-Wl,--emit-relocs"],
    "executable-stack": ["-Wl,-z,execstack"],
    "gold": ["-fuse-ld=gold"],
    "gold-sysv": ["-fuse-ld=gold", "-Wl,--hash-style=sysv"],
    "no-gnu-version": ["-Wl,--default-symver"],
    "text-relocations": ["-Wl,-z,notext"],
    "debug-compressed": ["-g", "-gz"],
    "interpose": ["-Wl,-z,interpose"],
    "initfirst": ["-Wl,-z,initfirst"],
}
HUGE = "char very_large[1ul << 33];\nchar *of_it(void) { return very_large; }\n"


def compiler(work, *arguments):
    """Whether it could be built: an old linker lacks some flags."""
    done = subprocess.run(["gcc", "-O1", "-w", *arguments], cwd=work, capture_output=True, text=True)
    return done.returncode == 0


def sources(work):
    texts = {"program.c": PROGRAM, "plain.c": PLAIN, "driver.c": DRIVER, "alone.c": ALONE, "alone32.c": ALONE_32, "unpack.c": UNPACK}
    for name, text in (texts | {"many.c": MANY, "huge.c": HUGE}).items():
        (work / name).write_text(text)


def program(work, directory, kind, link, change, position):
    """A program; `kind` says what it calls and where that is."""
    flags = LINKS[link]
    code = "plain.c" if kind == "plain" else "driver.c"
    driver = [] if kind == "plain" else ["-L.", "-l:libcuda.so.1"]
    made = f"{directory}/program"
    if kind == "library":
        library = f"{directory}/libshape.so"
        # A second one at the same addresses: one of them is moved.
        second = ["-Wl,-soname,libsecond.so", "-o", f"{directory}/libsecond.so", "many.c"]
        flagged = [flag for flag in flags if flag not in ("-rdynamic", "many.c")]
        first = ["-Wl,-soname,libshape.so", "-o", library, "driver.c", *flagged, *driver]
        if not compiler(work, "-shared", "-fPIC", *first) or not compiler(work, "-shared", "-fPIC", *second, *flagged):
            return False
        used = [f"-L{directory}", "-Wl,--no-as-needed", "-lsecond", "-lshape", "-Wl,--allow-shlib-undefined"]
        if not compiler(work, "-o", made, "program.c", *used, "-Wl,-rpath-link,."):
            return False
        mutate(work / library, change)
        return True
    ok = compiler(work, *position, "-o", made, "program.c", code, *flags, *driver)
    if ok:
        mutate(work / made, change)
    return ok


def alone(work, directory, source, *flags):
    return compiler(work, "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-o", f"{directory}/program", source, *flags)


def static(work, directory, *flags):
    return compiler(work, "-o", f"{directory}/program", "program.c", "plain.c", *flags)


def packed(work, directory, position):
    made = f"{directory}/program"
    if not shutil.which("upx") or not compiler(work, *position, "-o", made, "program.c", "plain.c", "-Wl,-z,noseparate-code", "many.c"):
        return False
    return subprocess.run(["upx", "-q", "--force", made], cwd=work, capture_output=True).returncode == 0


def from_memory(work, directory, position, *flags):
    stub, inner = f"{directory}/program", f"{directory}/inner"
    call = ["-L.", "-l:libcuda.so.1"]
    if not compiler(work, *flags, "-o", stub, "unpack.c") or not compiler(work, *position, "-o", inner, "program.c", "driver.c", *call):
        return False
    start = (work / stub).stat().st_size
    with open(work / stub, "ab") as file:
        file.write((work / inner).read_bytes() + struct.pack("<q", start))
    return True


def mutate(path, change):
    if change is not None:
        elf = Elf(path)
        CHANGES[change](elf)
        path.write_bytes(elf.bytes)


def shapes():
    """Of each name the builder, and what it is called with."""
    fixed, movable = ["-no-pie", "-fno-pic"], ["-pie", "-fPIE"]
    made = {}
    for kind in ("plain", "driver", "library"):
        for link in LINKS:
            for name, position in (("pie", movable), ("fixed", fixed)):
                if (kind == "library" or link == "high-address") and name == "fixed":
                    continue
                made[f"{kind}, {name}, {link}"] = (program, kind, link, None, position)
        for change in CHANGES:
            made[f"{kind}, {change}"] = (program, kind, "default", change, movable)
    for change, link in zip(itertools.cycle(CHANGES), ("other-address", "both-hashes", "relr", "2-mib-pages", "gold") * 4):
        made[f"driver, fixed, {link}, {change}"] = (program, "driver", link, change, fixed)
    loader = "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2"
    made["without libc, static"] = (alone, "alone.c", "-static")
    made["without libc, static-pie"] = (alone, "alone.c", "-static-pie", "-fPIE")
    made["without libc, with a loader"] = (alone, "alone.c", "-pie", "-fPIE", loader)
    made["without libc, with a loader, sysv hash"] = (alone, "alone.c", "-pie", "-fPIE", loader, "-Wl,--hash-style=sysv")
    made["without libc, fixed, with a loader"] = (alone, "alone.c", "-no-pie", "-Wl,-E", loader, "-Wl,--no-as-needed", "-lm")
    made["without libc, another address"] = (alone, "alone.c", "-pie", "-fPIE", loader, "-Wl,-Ttext-segment=0x20000000")
    made["static"] = (static, "-static")
    made["static-pie"] = (static, "-static-pie", "-fPIE")
    made["32 bits, without libc"] = (alone, "alone32.c", "-m32", "-static")
    made["from memory, by a static program"] = (from_memory, movable, "-static")
    made["from memory, by a program with a loader"] = (from_memory, fixed)
    if shutil.which("upx"):
        made["packed, pie"] = (packed, movable)
        made["packed, fixed"] = (packed, fixed)
    return made


def result(command, environment, directory):
    try:
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, timeout=120)
    except OSError as error:  # the kernel does not start it
        return (f"not started: {error.strerror}", b"", b"")
    return (done.returncode, done.stdout, done.stderr)


def main():
    parser = argparse.ArgumentParser(usage="elf-shapes.py BIN_DIR [--count N] [--only TEXT] [--keep DIR]")
    parser.add_argument("bins", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    library, driver = (arguments.bins.resolve() / name for name in ("libvramtrace.so", "libvramtrace_sim.so"))
    for file in (library, driver):
        if not file.exists():
            parser.error(f"{file} does not exist: build it with 'cargo build --workspace'")
    if arguments.count is not None and arguments.count < 1:
        parser.error(f"--count {arguments.count}: must be at least 1")
    chosen = [(name, build) for name, build in shapes().items() if arguments.only in name]
    if arguments.count is not None and arguments.count < len(chosen):
        chosen = [chosen[at * len(chosen) // arguments.count] for at in range(arguments.count)]
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.keep.resolve() if arguments.keep else Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        return run(work, library, driver, chosen)


def run(work, library, driver, chosen):
    sources(work)
    shutil.copy(driver, work / "libcuda.so.1")
    counts = {"agree": 0, "not built": 0, "recorded": 0, "fails alone": 0}
    differing = []
    for number, (name, (build, *words)) in enumerate(chosen):
        directory = work / str(number)
        directory.mkdir()
        if not build(work, str(number), *words):
            counts["not built"] += 1
            print(f"not built: {name}")
            continue
        out = directory / "out"
        out.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VRAMTRACE_", "LD_"))}
        bare = kept | {"LD_LIBRARY_PATH": f"{directory}:{work}", "SHAPE": "1"}
        ours = bare | {"LD_PRELOAD": str(library), "VRAMTRACE_OUT": f"{out}/"}
        command = [str(directory / "program"), "word"]
        expected, got = result(command, bare, directory), result(command, ours, directory)
        counts["fails alone"] += expected[0] != 7
        counts["recorded"] += any(out.iterdir())
        if expected[:2] == got[:2] and b"internal error" not in got[2]:
            counts["agree"] += 1
        else:
            differing.append(name)
            print(f"differs: {name}: {expected[0]} {expected[1]!r} alone, {got[0]} {got[1]!r} {got[2][-300:]!r} with the library")
    built = len(chosen) - counts["not built"]
    print(
        f"{built} shapes: {counts['agree']} agree, {len(differing)} differ; {counts['recorded']} were recorded, "
        f"{counts['fails alone']} end otherwise than with 7 alone too, {counts['not built']} could not be built here"
    )
    return 1 if differing or not built else 0


sys.exit(main())
