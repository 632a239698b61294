"""Renders what status says, as text for people. Pure: its object in, lines out.

What there is no room for on a screen of few lines is left out, the details first and of the last stream first: the
workers, the consumers, the history, then rates and rings. Problems, and what limits each stream, stay to the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefetchd.diagnosis.health import duration
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.printable import one_line

BAR_CELLS = 20
CELLS = {"ready": "#", "leased": "=", "behind": "-", "filling": "+", "quarantined": "x", "free": "."}
LEVELS = " ▁▂▃▄▅▆▇█"
WIDTH = 80
CHANGES_SHOWN = 2
MOST_WORKERS = 16

Section = tuple[int, list[str]]
"""(which of these, lines): the larger, the sooner it is left out."""
ESSENTIAL, GAP, TROUBLES, RING, RATES, HISTORY, CONSUMERS, WORKERS = range(8)


def render(
    found: dict[str, Any], socket: Path, width: int = WIDTH, *, history: bool = False, height: int | None = None
) -> list[str]:
    """Returns the lines of `prefetchd status` for the daemon on `socket`, none wider than `width` unless one word is,
    and no more than `height`. With `history`, how full each ring was in the last minute. No control character is in
    them, whatever names have."""
    sections = _sections(found, socket, width, history=history)
    if height is not None:
        sections = _fitting(sections, height)
    return [one_line(line) for _, lines in sections for line in lines]


def _fitting(sections: list[Section], height: int) -> list[Section]:
    """Leaves out what a screen of `height` lines has no room for."""
    excess = sum(len(lines) for _, lines in sections) - height
    left = list(sections)
    for kind in range(WORKERS, ESSENTIAL, -1):
        for at in range(len(left) - 1, -1, -1):
            if excess > 0 and left[at][0] == kind:
                excess -= len(left.pop(at)[1])
    if excess > 0:
        lines = [line for _, lines in left for line in lines]
        kept = max(1, height) - 1
        left = [(ESSENTIAL, [*lines[:kept], f"and {len(lines) - kept} more lines"])]
    return left


def _sections(found: dict[str, Any], socket: Path, width: int, *, history: bool) -> list[Section]:
    if "daemon" not in found:
        text = f"no daemon on {socket}; the first loader starts one, or `prefetchd run` does"
        return [(ESSENTIAL, [text])]
    daemon, workers = found["daemon"], found["workers"]
    lines = _flow(
        [
            f"prefetchd {daemon['software']}",
            found["state"] if found["state"] != "running" else found["health"],
            f"pid {daemon['pid']}",
            f"up {duration(daemon['up_s'])}",
            f"workers {workers['busy']} busy of {workers['limit'] or workers['running']}",
        ],
        width,
        begin="",
    )
    for problem in found["problems"]:
        lines += _flow(problem.split(" "), width, gap=" ", begin="! ", hang="  ")
    if not found["streams"]:
        lines.append("no streams")
    sections: list[Section] = [(ESSENTIAL, lines)]
    for stream in found["streams"]:
        sections += [(GAP, [""]), *_stream(stream, width, history)]
    # A declared stream that has begun is among the streams, with more to say.
    begun = {stream["name"] for stream in found["streams"]}
    for declared in found.get("declared", []):
        if declared["name"] not in begun:
            state = f"failed: {declared['failure']}" if declared["failure"] else "its dataset is being looked at"
            said = [f"{declared['name']}  declared", *_flow(state.split(" "), width, gap=" ")]
            sections += [(GAP, [""]), (ESSENTIAL, said)]
    if found.get("streams_left_out"):
        said = [f"and {found['streams_left_out']} more streams, for which there is no room here"]
        sections += [(GAP, [""]), (ESSENTIAL, said)]
    return sections


def _stream(stream: dict[str, Any], width: int, history: bool) -> list[Section]:
    sections: list[Section] = [(ESSENTIAL, _head(stream, width))]
    if stream["failure"]:
        failed = _flow(f"failed: {stream['failure']}".split(" "), width, gap=" ")
        return [*sections, (ESSENTIAL, failed)]
    if stream["ring"] is None:
        doing = "its first batch cannot be made" if stream["failed_batches"] else stream["stage"]
        return [*sections, (ESSENTIAL, [f"  {doing}"])]
    sections.append((RING, _ring(stream["ring"], width)))
    if history and stream["ready_percents"]:
        drawn = "  " + _sparkline(stream["ready_percents"], min(60, width - 18)) + " ready, 1 s each"
        sections.append((HISTORY, [drawn]))
    sections.append((RATES, _rates(stream, width)))
    if stream["store_fault"]:
        said = f"batches cannot be stored: {stream['store_fault']}"
        sections.append((ESSENTIAL, _flow(said.split(" "), width, gap=" ")))
    # Of an older daemon it is missing.
    if stream.get("not_ahead"):
        said = f"epochs are not prefetched: {stream['not_ahead']}"
        sections.append((TROUBLES, _flow(said.split(" "), width, gap=" ")))
    if stream["carried_by_fork"]:
        said = f"carried by fork: it cannot be made again after its trainer; {stream['carried_by_fork']}"
        sections.append((TROUBLES, _flow(said.split(" "), width, gap=" ")))
    if stream["progress"]["file"]:
        sections.append((TROUBLES, _flow(_progress(stream["progress"]).split(" "), width, gap=" ")))
    for consumer in stream["consumers"]:
        sections.append((CONSUMERS, _flow(_consumer(consumer), width, begin="  consumer ")))
    sections.append((WORKERS, _workers(stream, width)))
    # Of an older daemon it is missing.
    if stream.get("remote"):
        sections.append((WORKERS, _remote(stream["remote"], width)))
    for change in stream.get("tuning", [])[-CHANGES_SHOWN:]:
        # Of an older daemon there are workers alone.
        is_of_ring = change.get("batches") is not None
        after = f"{change['batches']} batches" if is_of_ring else f"{change['workers']} workers"
        said = f"tuned {duration(change['ago_s'])} ago, {change['before']} -> {after}: {change['why']}"
        sections.append((WORKERS, _flow(said.split(" "), width, gap=" ")))
    verdict = stream["verdict"]
    if verdict["answer"]:
        sections.append((ESSENTIAL, _flow(verdict["answer"].split(" "), width, gap=" ", begin="  > ")))
    return [*sections, (ESSENTIAL, _flow(verdict["text"].split(" "), width, gap=" ", begin="  > "))]


def _head(stream: dict[str, Any], width: int) -> list[str]:
    marks = []
    if stream["lingering"]:
        mark = "parked" if stream["stage"] == "parked" else "lingering"
        # Of an older daemon it is missing.
        left_s = stream.get("lingers_s")
        marks.append(f"[{mark}, kept {duration(left_s)} more]" if left_s is not None else f"[{mark}]")
    if stream["paused"]:
        marks.append("[paused]")
    ranks = [f"rank {stream['rank']} of {stream['world_size']}"] if stream["world_size"] > 1 else []
    return _flow(
        [
            stream["name"],
            f"{stream['order']}, batch {stream['batch_size']}",
            *([f"{stream['steps']} steps an epoch"] if stream["steps"] else []),
            f"seed {stream['seed']} ({stream['seed_source']})",
            *ranks,
            *marks,
        ],
        width,
        begin="",
    )


def _ring(ring: dict[str, Any], width: int) -> list[str]:
    counts = [
        f"{ring[state]} {state}"
        for state in ("ready", "leased", "behind", "filling", "quarantined", "free")
        if ring[state] or state not in ("behind", "quarantined")
    ]
    counts[-1] += f" of {ring['slots']}"
    size = f"({format_bytes(ring['segment_bytes'])})"
    parts = [f"{bar(ring)} {counts[0]}", *counts[1:]]
    parts = [f"{each}," for each in parts[:-1]] + [f"{parts[-1]} {size}"]
    return _flow(parts, width, gap=" ", begin="  ring ")


def _rates(stream: dict[str, Any], width: int) -> list[str]:
    recent, counts = stream["recent"], []
    if recent:
        # Of what is used batches alone are counted: their samples are reckoned by the mean batch.
        rows = stream["produced_samples"] / stream["produced_batches"] if stream["produced_batches"] else 0.0
        made, used = recent["produced_batches_per_s"], recent["consumed_batches_per_s"]
        counts += [
            f"made {rate(made)} batches/s ({rate(recent['produced_samples_per_s'])} samples/s)",
            f"used {rate(used)} batches/s ({rate(used * rows)} samples/s)",
        ]
        if stream["runway_s"] is not None:
            counts.append(f"runway {duration(stream['runway_s'])}")
        if recent["consumer_s"] and stream["consumers"]:
            share = recent["stalled_s"] / recent["consumer_s"]
            counts.append(
                f"stalled {share:.0%} ({duration(recent['stalled_s'])} of the last {recent['over_s']:.0f} s, "
                f"{duration(stream['stalled_s'])} in all)"
            )
    counts.append(
        f"in all {stream['produced_batches']} batches made ({format_bytes(stream['produced_bytes'])}), "
        f"{stream['consumed_batches']} used"
    )
    troubles = [
        f"{text} {stream[key]}"
        for key, text in (
            ("failed_batches", "failed"),
            ("bad_samples", "bad samples"),
            ("retries", "retries"),
            ("worker_deaths", "worker restarts"),
            ("zygote_deaths", "zygote restarts"),
            ("deviating_batches", "deviating"),
        )
        if stream[key]
    ]
    if stream.get("cache_damaged"):
        troubles.append("damaged samples in its sample cache (prefetchd cache verify --fix)")
    return _flow([*counts, ", ".join(troubles) or "no troubles"], width, hang="  ")


def _consumer(consumer: dict[str, Any]) -> Iterable[str]:
    yield f"pid {consumer['pid']}"
    if "epoch" in consumer:
        yield f"epoch {consumer['epoch']} step {consumer['step']}"
        yield f"yielded {consumer['yielded']}"
        yield f"waited {consumer['waited_s']:.2f} s (longest {consumer['longest_wait_s'] * 1000:.0f} ms)"
        if consumer["waiting_s"] >= 1:
            yield f"waits for {duration(consumer['waiting_s'])} by now"
        if consumer["private_copies"]:
            yield f"{consumer['private_copies']} private copies"
        if consumer.get("memory", "ordinary") != "ordinary":
            yield f"memory {consumer['memory']}"


def _workers(stream: dict[str, Any], width: int) -> list[str]:
    workers = stream["workers"]
    if not workers:
        return []
    shares = [each["busy_share"] for each in workers if each["busy_share"] is not None]
    pss = [each["pss_bytes"] for each in workers if each.get("pss_bytes") is not None]
    head = [f"workers {len(workers)} of {stream['workers_limit']}"]
    if shares:
        head.append(f"busy {sum(shares) / len(shares):.0%}")
    if pss:
        head.append(f"PSS {format_bytes(sum(pss))}")
    lines = _flow(head, width)
    shown = workers[:MOST_WORKERS]
    lines += _flow([_worker(each) for each in shown], width, begin="    ")
    if len(workers) > len(shown):
        lines.append(f"    and {len(workers) - len(shown)} more")
    return lines


def _remote(remote: dict[str, Any], width: int) -> list[str]:
    """Tells of workers on other machines, and of each node that has some or is not used."""
    head = [f"remote workers {remote['ready']} of {remote['wanted']}"]
    if remote["why_not"]:
        return _flow(f"{head[0]}: {remote['why_not']}".split(" "), width, gap=" ")
    # Machines may have to be started for them: what was asked for is not there at once.
    starting = remote["wanted"] if remote["bridge"] == "opening" else remote["workers"] - remote["ready"]
    if starting > 0:
        head.append(f"{starting} {remote.get('waits_for') or 'starting'}")
    head.append(f"{remote['under_way']} under way")
    if remote["late"]:
        head.append(f"{remote['late']} late")
    if remote["hedges_won"] or remote["hedges_lost"]:
        head.append(f"taken back in time {remote['hedges_won']}, too late {remote['hedges_lost']}")
    lines = _flow(head, width)
    for node in remote["nodes"]:
        why = node.get("why", "")
        if not node["workers"] and not why and not node["distrusted"]:
            continue
        about = [f"{node['name']}: {node['batches']} batches ({format_bytes(node['bytes'])})"]
        if node["lost"]:
            about.append(f"{node['lost']} lost")
        if node["distrusted"]:
            about.append(f"makes other batches than this machine: not used{f' ({why})' if why else ''}")
            if node.get("handed_out"):
                about.append(f"{node['handed_out']} were handed out before (see the log)")
        elif why:
            about.append(f"paused: {why}")
        elif not node["proved"]:
            about.append("its first batch is to be compared")
        lines += _flow(about, width, begin="    ", hang="      ")
    return lines


def _progress(progress: dict[str, Any]) -> str:
    said = f"epoch {progress['epoch']} batch {progress['step']}" if progress["epoch"] >= 0 else "nothing yet"
    text = f"progress {progress['file']}: {said}"
    if progress["unreadable"]:
        text += f", unreadable {progress['unreadable']} times"
    return f"{text}; {progress['complaint']}" if progress["complaint"] else text


def _worker(worker: dict[str, Any]) -> str:
    text = f"w{worker['number']}"
    if worker["busy_share"] is not None:
        text += f" {worker['busy_share']:.0%}"
    text += f" {worker['phase']}"
    if worker["index"] >= 0:
        text += f" {worker['index']}"
    return text + (f" for {duration(worker['phase_s'])}" if worker["phase_s"] >= 1 and worker["busy"] else "")


def bar(ring: dict[str, Any]) -> str:
    """Draws slots by state in BAR_CELLS cells; a state that has any slot has a cell, as far as there are some."""
    slots = max(1, ring["slots"])
    cells = ""
    for state in ("ready", "leased", "behind", "filling", "quarantined"):
        wanted = round(BAR_CELLS * ring[state] / slots) or (1 if ring[state] else 0)
        cells += CELLS[state] * min(wanted, BAR_CELLS - len(cells))
    return "[" + cells.ljust(BAR_CELLS, CELLS["free"]) + "]"


def rate(per_s: float) -> str:
    """Formats a rate; three figures are enough."""
    return f"{per_s:.0f}" if per_s >= 99.95 else f"{per_s:.1f}"


def _sparkline(percents: list[int], cells: int) -> str:
    last = percents[-cells:]
    return "".join(LEVELS[min(8, -(-percent * 8 // 100))] for percent in last)


def _flow(parts: Iterable[str], width: int, *, gap: str = "  ", begin: str = "  ", hang: str = "    ") -> list[str]:
    """Flows the parts one after another, on as many lines as that takes; parts are not broken."""
    lines, line, is_empty = [], begin, True
    for part in parts:
        if not is_empty and len(line) + len(gap) + len(part) > width:
            lines.append(line)
            line, is_empty = hang, True
        line += part if is_empty else gap + part
        is_empty = False
    return [*lines, line]
