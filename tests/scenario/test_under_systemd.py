"""The user units under a running systemd: started, killed, hung, activated by their socket, stopped, and removed.

A user's systemd in namespaces of its own: it and all that it starts end with the test, and of the file system it sees
all but its own temporary directories read-only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

SYSTEMD = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if Path(path).exists()), None)
NAMESPACES = ["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--mount-proc", "--kill-child"]

BEGIN = f"""
checkout=$PWD
mount -t tmpfs -o mode=1777 tmpfs /run
# These may lie in a temporary directory themselves.
for each in "$checkout" "{sys.prefix}"; do mkdir -p "/run/kept$each" && mount --bind "$each" "/run/kept$each"; done
for each in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $each; done
for each in "$checkout" "{sys.prefix}"; do
    [ -e "$each" ] && continue
    mkdir -p "$each" && mount --bind "/run/kept$each" "$each" && mount -o remount,bind,ro "$each"
done
mount -o remount,bind,ro / || exit 1
unset PREFETCHD_SOCKET PREFETCHD_INLINE
export HOME=/run/home XDG_RUNTIME_DIR=/run/user XDG_CONFIG_HOME=/run/home/.config XDG_STATE_HOME=/run/home/.state
# Without this directory a user's systemd refuses to run.
mkdir -p -m 700 /run/systemd/system $HOME $XDG_RUNTIME_DIR
cd $HOME

until_() {{
    for _ in $(seq 300); do "$@" && return; sleep 0.1; done
    echo "never: $*"
    exit 3
}}
answers() {{ systemctl --user is-system-running > /dev/null 2>&1; }}
active() {{ [ "$(systemctl --user is-active prefetchd.$1)" = "$2" ]; }}
pid() {{ systemctl --user show -p MainPID --value prefetchd.service; }}
restarted() {{ active service active && [ $(systemctl --user show -p NRestarts --value prefetchd) = $1 ]; }}

{SYSTEMD} --user > systemd.log 2>&1 &
for _ in $(seq 50); do answers && break; sleep 0.1; done
answers || {{ echo "no: $(tail -1 systemd.log)"; exit 0; }}
"""
"""A user's systemd that answers, in a home of its own; or "no:", and why it does not."""

SCRIPT = f"""{BEGIN}
cat > train.py <<'END'
import sys
from prefetchd_client import PrefetchLoader
with PrefetchLoader([float(index) for index in range(20)], batch_size=4, stream="train") as loader:
    print(sys.argv[1], [batch.tolist() for batch in loader] == [[4.0 * k + row for row in range(4)] for k in range(5)])
END
train() {{ {sys.executable} train.py "$1"; }}
prefetchd() {{ {sys.executable} -m prefetchd "$@"; }}

prefetchd systemd install > /dev/null || exit 4
mkdir -p $XDG_CONFIG_HOME/systemd/user/prefetchd.service.d
printf '[Service]\\nWatchdogSec=4\\nRestartSec=0.2\\n' > $XDG_CONFIG_HOME/systemd/user/prefetchd.service.d/sooner.conf
systemctl --user daemon-reload && systemctl --user restart prefetchd.service
echo "ready: $(systemctl --user is-active prefetchd.service)"
train "batches:"
idle() {{ systemctl --user show -p StatusText --value prefetchd | grep -q "1 stream, 0 of"; }}
until_ idle; echo "says: $(systemctl --user show -p StatusText --value prefetchd | sed 's/ of .*//')"
kill -KILL $(pid); until_ restarted 1; train "killed:"
kill -STOP $(pid); until_ restarted 2; train "hung:"
systemctl --user reload prefetchd.service 2> /dev/null || echo "without a file: refused"
: > streams.toml; prefetchd reload --config streams.toml > /dev/null
systemctl --user reload prefetchd.service && echo "with one: read"
rings() {{ ls /dev/shm | grep -e -ring-; }}
before=$(rings) pid=$(pid)
systemctl --user restart prefetchd.service
[ -n "$before" ] && [ "$before" = "$(rings)" ] && [ $pid != $(pid) ] && echo "restart: kept"
pid=$(pid)
prefetchd restart > said || cat said
[ "$before" = "$(rings)" ] && [ $pid != $(pid) ] && echo "by verb: $(tail -1 said)"
systemctl --user stop prefetchd.service prefetchd.socket; until_ active service inactive
echo "left: $(ls /dev/shm) $(find $XDG_RUNTIME_DIR/prefetchd -type f -o -type s)"
systemctl --user start prefetchd.socket
echo "waits: $(systemctl --user is-active prefetchd.service)"
train "activated:"
echo "serves: $(systemctl --user is-active prefetchd.service)"
prefetchd systemd uninstall > said || cat said
until_ active service inactive
echo "uninstalled: $(systemctl --user list-unit-files --no-legend 'prefetchd*') $(ls $XDG_CONFIG_HOME/systemd/user)"
grep -q "^left .*/sooner.conf" said && echo "drop-in: named"
prefetchd systemd uninstall | head -1 | grep -q "^no unit of prefetchd is installed" && echo "again: nothing"
"""


@pytest.fixture
def own_groups() -> Iterator[list[Path]]:
    """A cgroup for it in each hierarchy that systemd looks at."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        tops = {"name=systemd": ["systemd"], "": ["unified", "."]}.get(controllers, [])
        for top in tops:
            place = Path("/sys/fs/cgroup", top, path.lstrip("/"))
            if (place / "cgroup.procs").exists():
                groups.append(place / f"prefetchd-test-{uuid.uuid4().hex[:8]}")
                break
    try:
        for group in groups:
            group.mkdir()
    except OSError as error:
        pytest.skip(f"no right to make a cgroup: {error}")
    try:
        yield groups
    finally:
        for group in groups:
            for directory, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(directory)


def run_in_namespaces(script: str, groups: list[Path]) -> subprocess.CompletedProcess[str]:
    """Runs a script that begins with BEGIN. Skips the test where that cannot be."""
    if SYSTEMD is None or shutil.which("unshare") is None:
        pytest.skip("no systemd here")
    join = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in groups) or "true"
    command = ["unshare", *NAMESPACES, "--propagation", "private"]
    if subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, check=False).returncode:
        pytest.skip("no right to make namespaces")
    done = subprocess.run(
        ["sh", "-c", f'{join} && exec "$@"', "sh", *command, "bash", "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    if done.stdout.startswith("no:"):
        pytest.skip(f"systemd does not run in namespaces here: {done.stdout}")
    return done


@pytest.mark.slow
def test_the_user_units(own_groups):
    done = run_in_namespaces(SCRIPT, own_groups)
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.replace(": \n", ":  \n").splitlines())
    assert {key: value.strip() for key, value in said.items()} == {
        "ready": "active",
        "batches": "True",
        "says": "1 stream, 0",
        "killed": "True",
        "hung": "True",
        "without a file": "refused",
        "with one": "read",
        "restart": "kept",
        "by verb": "kept: train",
        "left": "",
        "waits": "inactive",
        "activated": "True",
        "serves": "active",
        "uninstalled": "prefetchd.service.d",
        "drop-in": "named",
        "again": "nothing",
    }
