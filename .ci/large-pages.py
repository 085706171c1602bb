#!/usr/bin/env python3
"""Reads programs again so that the kernel keeps them in large pages: processes that start afterwards map them as such.

    .ci/large-pages.py PATH...     programs, or folders whose programs are meant; what does not exist is left out

Why: docs/decisions/tests-use-large-pages.md. It changes no file, and fails for none: where the kernel or the file system cannot do it, programs
stay in small pages. A program that runs meanwhile keeps its small pages, too.
"""

import mmap
import os
import sys

SMALLEST = 2 << 20


def programs(paths):
    """Files of at least one large page that begin as programs do."""
    for path in paths:
        files = [path] if os.path.isfile(path) else (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        for file in map(os.path.realpath, files):
            if os.access(file, os.X_OK) and os.path.isfile(file) and os.path.getsize(file) >= SMALLEST:
                with open(file, "rb") as opened:
                    if opened.read(4) == b"\x7fELF":
                        yield file


def read_again(file):
    """Returns whether all whole large pages of the file are mapped as such."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC) as mapped:
            mapped.madvise(mmap.MADV_HUGEPAGE)
            with memoryview(mapped) as view, view[::mmap.PAGESIZE] as pages:
                sum(pages)
            with open("/proc/self/smaps_rollup", encoding="utf-8") as file_of_sums:
                large = sum(int(line.split()[1]) for line in file_of_sums if line.startswith("FilePmdMapped"))
            return large * 1024 >= len(mapped) // SMALLEST * SMALLEST
    finally:
        os.close(descriptor)


def main():
    done = {}
    for file in programs(sys.argv[1:]):
        try:
            done[file] = read_again(file)
        except OSError as error:
            print(f"{file}: {error}", file=sys.stderr)
    print(f"{sum(done.values())} of {len(done)} programs are in large pages")


if __name__ == "__main__":
    main()
