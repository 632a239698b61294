"""run makes a chaos run from its first kill to its verdict, in words."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from prefetchd_demo.machine import describe_machine

from benchmarks.chaos.declared import declare
from benchmarks.chaos.driver import BATCHES_A_KILL, Driver, Stuck
from benchmarks.chaos.kill_log import kills_by_point
from benchmarks.chaos.verdict import Samples, recomputed, use_one_thread
from prefetchd.kill_points.kill_point_table import POINTS
from prefetchd.wire.runtime_paths import runtime_paths

MOST_BATCHES_A_KILL = 20
KILLS_FOR_EVERY_POINT = 1000
"""The kills from which on a run must have hit every point."""
SHOWN = 20
SHOWN_DIARY = 200
FATES = ("started", "ring adopted", "ring not adopted", "stream replaced", "ring lingered out", "ring gives way")
"""What the daemon's log calls the events that decide whether a ring goes on."""


def run(directory: Path, kills: int, seed: int, minutes: float) -> bool:
    """Runs and tells. Returns True when nothing was wrong."""
    use_one_thread()
    declare(directory)
    paths = runtime_paths()
    print(f"{describe_machine()}\n{kills} kills, seed {seed}", flush=True)
    driver = Driver(directory, paths, kills, seed, lambda line: print(line, flush=True))
    began_s = time.monotonic()
    stuck = ""
    try:
        driver.run(began_s + 60 * minutes)
        driver.finish()
    except Stuck as error:
        stuck = str(error)
        driver.say_where_it_is()
    finally:
        driver.abort()
    took_s = time.monotonic() - began_s
    driver.stop_daemon()
    return _tell(driver, directory, stuck, took_s, kills)


def _tell(driver: Driver, directory: Path, stuck: str, took_s: float, kills: int) -> bool:
    for trail in driver.trails:
        trail.read_on()
    wrongs: Counter[str] = Counter()
    for trail in driver.trails:
        wrongs += trail.wrongs
    watch = driver.watch
    samples = Samples(directory / "samples")
    again, excused, asked = recomputed(watch.deaths, watch.served, driver.stops, driver.killed, samples, driver.trails)
    leaked = driver.leaked()
    crashes = crashes_in(next(directory.glob("prefetchd/*.log"), None))
    hits = kills_by_point(driver.kill_log)
    total = driver.kills
    batches = sum(trail.batches for trail in driver.trails)

    print(
        f"\n{total} kills in {took_s / 60:.1f} min, {60 * total / took_s:.0f} a minute; {driver.batches} batches, ",
        end="",
    )
    print(f"one kill on {batches / max(1, total):.1f}")
    print("at random times: " + ", ".join(f"{role} {count}" for role, count in driver.at_random.most_common()))
    by_role = Counter(dict.fromkeys(("daemon", "env", "zygote", "worker", "planner", "client"), 0))
    for point, count in hits.items():
        by_role[point.split(".")[0]] += count
    print("at kill points:  " + ", ".join(f"{role} {count}" for role, count in by_role.items()))
    print(f"daemons that died: {len(driver.watch.deaths)}")
    for point in POINTS:
        print(f"    {point:28} {hits[point]:4}")
    print(f"points hit fewer than {kills // 100} times: {', '.join(missed_points(kills, hits)) or 'none'}")
    for deaths, longest_s in sorted(longest_waits(driver).items()):
        print(f"longest wait in next() while {deaths} daemons died: {longest_s:.2f} s")
    print(f"longest start of a loader: {max(trail.longest_start_s for trail in driver.trails):.2f} s")
    for kind in ("lost", "repeated", "reordered", "torn", "changed"):
        print(f"{kind + ':':28} {wrongs[kind]}")
    print(f"{'made again though ready:':28} {len(again)}  (of {asked} that were ready when a daemon died; ", end="")
    print(f"{excused} more with a reason for it)")
    print(f"{'leaked:':28} {len(leaked)}")
    print(f"{'errors:':28} {wrongs['error'] + len(driver.unexpected) + len(crashes) + bool(stuck)}")
    wrong = [line for trail in driver.trails for line in trail.wrong]
    wrong += again + leaked + driver.unexpected + crashes + ([f"stuck: {stuck}"] if stuck else [])
    for line in wrong[:SHOWN]:
        print(f"WRONG {line}")
    if len(wrong) > SHOWN:
        print(f"... and {len(wrong) - SHOWN} more")
    if again:
        # Whoever is to find out why may have nothing but this text.
        for line in fates_of_rings(next(directory.glob("prefetchd/*.log"), None)):
            print(f"    {line}")
        print("\n".join(f"    {line}" for line in (directory / "diary").read_text().splitlines()[-SHOWN_DIARY:]))
    short = shortfalls(kills, hits, total, batches, driver.batches)
    for line in short:
        print(f"SHORT {line}")
    return not wrong and not short


def shortfalls(wanted: int, hits: Counter[str], kills: int, judged: int, taken: int) -> list[str]:
    """Returns what the run cannot show, in words: of `wanted` kills there were `kills`, and `judged` of the `taken`
    batches stand in journals."""
    found = []
    if kills < wanted:
        found.append(f"{kills} of {wanted} kills")
    if judged < taken:
        found.append(f"{judged} batches are in the journals, {taken} were taken")
    if judged > MOST_BATCHES_A_KILL * kills + BATCHES_A_KILL:
        found.append(f"too few kills for {judged} batches")
    if wanted >= KILLS_FOR_EVERY_POINT and (missed := missed_points(wanted, hits)):
        found.append(f"{len(missed)} points were hit too rarely")
    return found


def missed_points(wanted: int, hits: Counter[str]) -> list[str]:
    """Returns the points at which less than a hundredth of all kills fell."""
    return [point for point in POINTS if hits[point] < wanted // 100]


def longest_waits(driver: Driver) -> dict[int, float]:
    """Returns the longest wait in next(), by how many daemons died meanwhile or up to a second before."""
    longest: dict[int, float] = {}
    for trail in driver.trails:
        for began_s, waited_s in trail.waits:
            deaths = sum(began_s - 1.0 < each.at_s < began_s + waited_s for each in driver.watch.deaths)
            longest[deaths] = max(longest.get(deaths, 0.0), waited_s)
    return longest


def fates_of_rings(log: Path | None) -> list[str]:
    """Returns the lines of a daemon's log that tell what became of rings."""
    lines = log.read_text().splitlines() if log is not None else []
    return [line[:300] for line in lines if any(f'"event": "{fate}"' in line for fate in FATES)]


def crashes_in(log: Path | None) -> list[str]:
    """Returns what a daemon's log tells that no kill explains: exceptions of its own, failed streams, and children that
    died of something else."""
    if log is None:
        return []
    found = []
    for line in log.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        how = str(entry.get("how", ""))
        other_death = "killed by" in how and "SIGKILL" not in how
        if entry.get("level") in ("error", "critical") or other_death:
            found.append(f"the daemon's log: {line[:2000]}")
    return found
