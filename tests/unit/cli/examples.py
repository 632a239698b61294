"""Reports to render: a snapshot with streams in every state."""

from __future__ import annotations

from typing import Any

from prefetchd.status.snapshot import Report

GIB = 1 << 30


def ring(**changes: Any) -> dict[str, Any]:
    found = {"segment": "/prefetchd-1-ring-2", "directory": "/dev/shm", "name_removed": False}
    found |= {"segment_bytes": GIB, "slots": 20}
    found |= {"slot_bytes": 1 << 22, "slots_a_batch": 1.0}
    found |= {"free": 4, "filling": 2, "ready": 10, "leased": 4, "behind": 0, "quarantined": 0}
    return found | changes


def consumer(**changes: Any) -> dict[str, Any]:
    found = {"pid": 4711, "departed": False, "epoch": 1, "step": 408, "yielded": 1190, "waited_s": 2.345}
    found |= {"longest_wait_s": 0.5432, "waiting_s": 0.0, "private_copies": 0, "held": 4, "memory": "ordinary"}
    return found | changes


def worker(number: int, **changes: Any) -> dict[str, Any]:
    found = {"number": number, "pid": 5000 + number, "stage": "ready", "busy": True, "busy_share": 0.97}
    found |= {"phase": "loading", "index": 31_000 + number, "phase_s": 0.02, "pss_bytes": 320 << 20}
    return found | changes


def recent(**changes: Any) -> dict[str, Any]:
    found = {
        "over_s": 60.0,
        "produced_batches_per_s": 12.4,
        "produced_samples_per_s": 793.6,
        "elsewhere_batches_per_s": 0.0,
        "consumed_batches_per_s": 12.3,
        "consumer_s": 60.0,
        "stalled_s": 22.8,
        "fill_s": 115.0,
        "cpu_s": 40.0,
        "cpu_wait_s": 1.0,
        "process_cpu_s": 40.0,
        "collating_s": 0.0,
        "disk_s": 0.0,
        "starting_s": 0.0,
        "bursts": 0,
        "busy_workers": 1.9,
        "full_share": 0.0,
        "empty_share": 0.41,
        "longest_task_s": 0.3,
    }
    return found | changes


def progress(**changes: Any) -> dict[str, Any]:
    return {"file": "", "epoch": -1, "step": -1, "unreadable": 0, "complaint": ""} | changes


def stream(**changes: Any) -> dict[str, Any]:
    found = {
        "name": "train.py:0",
        "stage": "running",
        "failure": None,
        "fingerprint": "0" * 32,
        "seed": 7,
        "seed_source": "argument",
        "samples": 50_000,
        "batch_size": 64,
        "steps": 782,
        "order": "shuffle",
        "rank": 0,
        "world_size": 1,
        "by_rows": True,
        "one_by_one": True,
        "lingering": False,
        "lingers_s": None,
        "paused": False,
        "not_ahead": "",
        "ring": ring(),
        "consumers": [consumer()],
        "absent_consumers": [],
        "workers_limit": 2,
        "tuned": True,
        "buffer_tuned": True,
        "tuning": [
            {"ago_s": 7.0, "before": 1, "workers": 2, "batches": None, "why": "the trainer waited 31% of its time"}
        ],
        "workers": [worker(1), worker(2, phase="collating", index=-1, phase_s=3.4)],
        "recent": recent(),
        "paces": [{"workers": 2, "batches_per_s": 12.4, "over_s": 60.0}],
        "ready_percents": [0, 5, 20, 45, 60, 80, 100, 50, 10, 0],
        "produced_batches": 1200,
        "produced_samples": 76_800,
        "produced_bytes": 3 * GIB,
        "consumed_batches": 1190,
        "stalled_s": 102.3,
        "tasks": 2400,
        "fill_s": 60.0,
        "failed_batches": 0,
        "deviating_batches": 0,
        "worker_deaths": 1,
        "zygote_deaths": 0,
        "retries": 1,
        "bad_samples": 3,
        "bad_samples_named": ["dataset[7] (epoch 0, step 1, row 3) is left out: ValueError: broken"],
        "slowest_samples": [
            {"worker": 1, "index": 31_007, "phase": "loading", "lasted_s": 2.25, "ago_s": 41.0},
            {"worker": 2, "index": -1, "phase": "collating", "lasted_s": 0.75, "ago_s": 3.0},
        ],
        "cache_damaged": False,
        "output_lines_left_out": 0,
        "replanned_batches": 0,
        "remote": None,
        "declared": False,
        "store": "shm",
        "batches_ready": 0,
        "batches_wanted": 0,
        "warm": False,
        "store_fault": "",
        "workers_asked": 0,
        "zygote": "fork",
        "program_kept": True,
        "carried_by_fork": "",
        "progress": progress(),
    }
    return found | changes


def report(*streams: dict[str, Any], state: str = "running", age_s: float = 0.1, up_s: float = 12.34) -> Report:
    return Report(
        state,
        age_s,
        {
            "snapshot_version": 1,
            "taken_unix_s": 1.0,
            "daemon": {"pid": 99, "software": "0.1.0", "started_unix_s": 1.0, "up_s": up_s},
            "workers": {"limit": 8, "asked": 8, "cpus": 8, "running": 4, "busy": 3},
            "load": {"over_s": 10.0, "cpus": 8.0, "busy": 2.5, "own": 0.8, "trainers": 1.5, "others": 0.2},
            "streams": list(streams),
            "declared": [],
        },
    )


def remote(**changes: object) -> dict[str, object]:
    """Workers on other machines, of which none has come yet."""
    counted = dict.fromkeys(("workers", "ready", "under_way", "late", "hedges_won", "hedges_lost"), 0)
    return {"wanted": 6, "bridge": "open", "why_not": "", **counted, "nodes": [], **changes}


def node(**changes: object) -> dict[str, object]:
    counted = dict.fromkeys(("workers", "batches", "bytes", "lost", "mismatches"), 0)
    about = {"name": "cpu-7-1a2b3c4d", "processor": "AMD EPYC 7763", "proved": True, "distrusted": False}
    return {**about, **counted, "transfer_s": 1.5, **changes}


def every_state() -> Report:
    """One of each kind."""
    untroubled = dict.fromkeys(("worker_deaths", "retries", "bad_samples"), 0)
    found = report(
        stream(),
        stream(
            name="examples/imagenet/validate.py:1",
            ring=ring(ready=14, leased=4, filling=2, free=0),
            recent=recent(full_share=0.97, empty_share=0.0, stalled_s=0.2, fill_s=30.0, consumed_batches_per_s=3.1),
            consumers=[consumer(), consumer(pid=4712, step=409, waiting_s=4.2, private_copies=12, memory="registered")],
            world_size=8,
            rank=3,
            **untroubled,
        ),
        stream(
            name="far",
            remote=remote(
                ready=6,
                under_way=11,
                late=1,
                hedges_won=3,
                hedges_lost=1,
                nodes=[
                    node(workers=4, batches=812, bytes=31 << 30, lost=2),
                    node(name="cpu-8-99aabbcc", workers=2, proved=False),
                    node(name="old-1-0badc0de", batches=1, distrusted=True, mismatches=1),
                ],
            ),
        ),
        stream(name="soon", remote=remote(bridge="opening")),
        stream(name="some", remote=remote(workers=6, ready=2)),
        stream(name="without", remote=remote(why_not="no Ray cluster answers at 10.0.0.1:6379: Connection refused")),
        stream(
            name="removed",
            ring=ring(name_removed=True, behind=3, quarantined=1, free=0),
            lingering=True,
            lingers_s=52.4,
            consumers=[],
            workers=[],
            recent=None,
        ),
        stream(name="broken", stage="failed", failure="cannot be loaded: " + "No module named 'nowhere' " * 5),
        stream(name="new", stage="loading", ring=None, recent=None, workers=[]),
        stream(
            name="jpegs",
            declared=True,
            store_fault="/mnt/ram: Read-only file system",
            program_kept=False,
            carried_by_fork="dataset.lock: TypeError: cannot pickle '_thread.lock' object",
            progress=progress(file="/mnt/ram/progress", epoch=2, step=17, unreadable=3, complaint="3 lines, not 2"),
            consumers=[],
        ),
        up_s=4000.0,
    )
    assert found.snapshot is not None
    found.snapshot["declared"] = [
        {"name": "jpegs", "settled": True, "failure": ""},
        {"name": "later", "settled": False, "failure": ""},
        {"name": "never", "settled": True, "failure": "data.py: ModuleNotFoundError: No module named 'nowhere'"},
    ]
    return found
