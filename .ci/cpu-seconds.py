#!/usr/bin/env python3
"""Counts the CPU seconds of all processes of this machine, by phase of a run and by kind of process.

    .ci/cpu-seconds.py PHASE_FILE     counts until SIGTERM, then prints a table

PHASE_FILE holds the name of the present phase. A process is read once a second and counts with what it used until then. What processes used
that lived between two readings is known only in sum, from /proc/stat: it is the last kind.

A machine that has lent its processors to others, or has slowed them down, counts that time as used, too. So one column says how much
longer than its shortest time a fixed computation took: the median, and that of the slowest minute.

A hypervisor that keeps page tables of its own may take tens of microseconds for a small page that was not used a moment ago, and counts that
time as used, too. So the last column says how many microseconds it took to read a byte of a page: the median, and that of the slowest minute.
Where this is more than one, programs need several times their seconds unless large pages are on.
"""

import collections
import mmap
import os
import signal
import statistics
import sys
import time

INTERVAL = 1.0
# Readings in which a slowness counts as lasting.
MINUTE = 60
# Steps of the fixed computation: about a millisecond.
STEPS = 20_000
# Small pages of which one byte is read, and the readings between two such passes, which may take half a second.
PAGES = 8192
READINGS_PER_PASS = 10
# The first kind with a beginning of the process's name counts. The kernel keeps 15 characters of a name.
KINDS = [
    ("compilers", ("rustc", "clippy-driver", "cargo", "rustdoc", "rust-lld", "ld", "cc", "gcc", "cc1", "collect2", "build-script",
                   "go", "compile", "link", "asm", "vet")),
    ("API servers", ("kube-apiserver", "etcd")),
    ("kubelets", ("kubelet", "containerd", "runc")),
    ("other Kubernetes", ("kube-", "coredns", "kwok", "metrics-server", "kubectl")),
    ("Liqo", ("liqo-controller", "liqo-fabric", "liqoctl")),
]
TESTS = "tests"
UNSEEN = "short-lived, and others"
TICKS = os.sysconf("SC_CLK_TCK")


def kind_of(pid, name):
    for kind, beginnings in KINDS:
        if name in beginnings or any(name.startswith(beginning) for beginning in beginnings if len(beginning) > 4):
            return kind
    try:
        return TESTS if "/deps/" in os.readlink(f"/proc/{pid}/exe") else None
    except OSError:
        return None


def processes():
    """Ticks of each process, by its ID and start."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        yield pid, fields[19], name, int(fields[11]) + int(fields[12])


def machine():
    """Busy ticks of all processors."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    return sum(fields[:3]) + sum(fields[5:7])


def fixed_computation():
    """Seconds of processor time that a computation takes, which is always the same."""
    begun = time.thread_time()
    value = 1
    for _ in range(STEPS):
        value = value * 16807 % 2147483647
    return time.thread_time() - begun


def small_pages():
    """Memory in small pages, all of them written once."""
    memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(PAGES):
        memory[page * mmap.PAGESIZE] = 1
    return memory


def pass_over(memory):
    """Seconds of processor time to read a byte of a page."""
    begun = time.thread_time()
    sum(memoryview(memory)[::mmap.PAGESIZE])
    return (time.thread_time() - begun) / PAGES


def middle_and_slowest(seconds, unit, per_minute):
    """In this unit: the median, and the median of the slowest minute."""
    if not seconds:
        return ""
    minutes = [seconds[begin:begin + per_minute] for begin in range(0, len(seconds), per_minute)]
    slowest = max(statistics.median(minute) for minute in minutes)
    return f"{statistics.median(seconds) / unit:.1f}, {slowest / unit:.1f}"


def phase(path, before):
    """The name in the file, or the one before while somebody writes it."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or before
    except OSError:
        return before


class Counts:
    def __init__(self):
        self.ticks = collections.Counter()
        self.wall = collections.Counter()
        self.phases = []
        self.computations = collections.defaultdict(list)
        self.memory, self.passes = small_pages(), collections.defaultdict(list)
        self.readings = 0
        self.last = {(pid, start): ticks for pid, start, _, ticks in processes()}
        self.busy, self.time = machine(), time.monotonic()

    def read(self, now_phase):
        if now_phase not in self.phases:
            self.phases.append(now_phase)
        seen, last = 0, {}
        for pid, start, name, ticks in processes():
            used = ticks - self.last.get((pid, start), 0)
            last[pid, start] = ticks
            kind = kind_of(pid, name) if used else None
            if kind:
                self.ticks[now_phase, kind] += used
                seen += used
        busy, now = machine(), time.monotonic()
        self.ticks[now_phase, UNSEEN] += max(0, busy - self.busy - seen)
        self.wall[now_phase] += now - self.time
        self.computations[now_phase].append(fixed_computation())
        if self.readings % READINGS_PER_PASS == 0:
            self.passes[now_phase].append(pass_over(self.memory))
        self.readings += 1
        self.last, self.busy, self.time = last, busy, now

    def table(self):
        kinds = [kind for kind, _ in KINDS] + [TESTS, UNSEEN]
        shortest = min((seconds for all in self.computations.values() for seconds in all), default=1)
        rows = [["CPU seconds", "wall time", "all"] + kinds + ["slower (minute)", "us a page (minute)"]]
        for name in self.phases + [None]:
            used = [sum(self.ticks[one, kind] for one in self.phases if name in (None, one)) for kind in kinds]
            wall = sum(seconds for one, seconds in self.wall.items() if name in (None, one))
            computations = [seconds for one in self.phases if name in (None, one) for seconds in self.computations[one]]
            passes = [seconds for one in self.phases if name in (None, one) for seconds in self.passes[one]]
            rows.append([name or "in sum", f"{wall:.0f}"] + [f"{ticks / TICKS:.0f}" for ticks in [sum(used)] + used]
                        + [middle_and_slowest(computations, shortest, MINUTE),
                           middle_and_slowest(passes, 1e-6, MINUTE // READINGS_PER_PASS)])
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.rjust(width) if index else cell.ljust(width)
                                   for index, (cell, width) in enumerate(zip(row, widths))) for row in rows)


def main():
    counts, is_over, parent, now = Counts(), [], os.getppid(), "start"
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    while not is_over and os.getppid() == parent:
        time.sleep(INTERVAL)
        now = phase(sys.argv[1], now)
        counts.read(now)
    print(counts.table(), flush=True)


if __name__ == "__main__":
    main()
