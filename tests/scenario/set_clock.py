"""A wall clock that a test can set, for chosen processes: a library in front of libc's clock functions.

Setting the machine's own clock would take a privilege, and everybody else with it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

OFFSET = struct.Struct("<q")
VARIABLE = "PREFETCHD_TEST_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t nothing = 0, *offset_s = &nothing;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("PREFETCHD_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) offset_s = found;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += *offset_s;
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


class SetClock:
    """The clock of all processes that are started with `environment`; it is right at first. Raises LookupError where
    there is no C compiler."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise LookupError("no C compiler")
        library, source = directory / "clock.so", directory / "clock.c"
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        self.path = directory / "clock"
        self.path.write_bytes(OFFSET.pack(0))
        self.environment = {"LD_PRELOAD": os.fspath(library), VARIABLE: os.fspath(self.path)}

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's clock from now on."""
        set_ahead(self.path, ahead_s)


def set_ahead(path: str | Path, ahead_s: int) -> None:
    """The same for a process that has only the variable."""
    with open(path, "rb+") as file:
        file.write(OFFSET.pack(ahead_s))
