"""Driver drives a chaos run: trainers are started and started again, everything is killed, all batches are judged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.board import Board
from benchmarks.chaos.daemon_watch import DaemonWatch
from benchmarks.chaos.declared import left_over, ready_files
from benchmarks.chaos.kill_log import kills_by_pid, kills_by_point
from benchmarks.chaos.processes import Processes, kill
from benchmarks.chaos.rings import ready_batches
from benchmarks.chaos.steering import Order, Steering
from benchmarks.chaos.trainer import start_trainer
from benchmarks.chaos.verdict import Oracle, Trail
from benchmarks.chaos.work import WORKS
from prefetchd.kill_points.kill_points import write_order
from prefetchd.wire.runtime_paths import RuntimePaths

BATCHES_A_KILL = 18
GRANT_EVERY_S = 0.02
LOOK_EVERY_S = 0.002
ORDER_WITHIN_S = 12.0
IDLE_ORDER_S = 1.0
"""Seconds that an order waits once all batches were taken that the kills so far allow."""
MOST_IN_VAIN = 3
STUCK_AFTER_S = 90.0
PROGRESS_EVERY_S = 5.0
STOPPED_AT_MOST_S = 0.3
RANDOM_ROLES = {
    "worker": 8,
    "trainer": 5,
    "planner": 2,
    "helper": 1,
    "zygote": 2,
    "env": 1,
    "daemon": 2,
    "daemon and trainer": 1,
}


class Stuck(Exception):  # noqa: N818 - reads as what it is
    """Nobody has taken a batch for long, though all may."""


class Driver:
    """Drives one run. `directory` holds everything that it writes; `paths` are those of its daemons."""

    def __init__(self, directory: Path, paths: RuntimePaths, kills: int, seed: int, say: Callable[[str], None]) -> None:
        self.trails = [Trail(work, directory / f"{work.name}.journal", Oracle()) for work in WORKS]
        self.at_random: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self.stops: list[float] = []
        self._killed: dict[int, float] = {}
        self._directory = directory
        self._paths = paths
        self._wanted_kills = kills
        self._seed = seed
        self._say = say
        self._dice = random.Random(seed)
        self._board = Board(len(WORKS))
        self._processes = Processes(paths, str(self.kill_log))
        self.watch = DaemonWatch(paths, self._processes, lambda: ready_batches(paths) | ready_files(directory))
        self._steering = Steering(self._dice, kills, kills // 100)
        self._trainers: dict[int, int] = {}
        self._lives = [0] * len(WORKS)
        self._orders = 0
        self._began_s = time.monotonic()
        self._granted_s = 0.0
        self._told_s = self._began_s
        self._taken_at = (0, self._began_s)
        self._dear_kills = 0
        write_order(self.order_file, 0)

    @property
    def order_file(self) -> Path:
        return self._directory / "order"

    @property
    def kill_log(self) -> Path:
        return self._directory / "kills"

    @property
    def batches(self) -> int:
        return self._board.taken

    @property
    def kills(self) -> int:
        return sum(self.at_random.values()) + sum(kills_by_point(self.kill_log).values())

    @property
    def killed(self) -> dict[int, float]:
        """When each process was killed, at a kill point or at a random time."""
        return {**self._killed, **kills_by_pid(self.kill_log)}

    # --- the run ---

    def run(self, until_s: float) -> None:
        """Makes all kills, or as many as there is time for. Raises Stuck."""
        for number in range(len(WORKS)):
            self._start(number)
        self._board.allow_one_each()
        self._wait(lambda: all(self._board.taken_by(each) for each in range(len(WORKS))), STUCK_AFTER_S)
        self._board.allow(self._board.taken)
        in_vain = 0
        order: Order | None = None
        hit = False
        while self.kills < self._wanted_kills and time.monotonic() < until_s:
            hits = kills_by_point(self.kill_log)
            order = self._steering.following(hits, order.point) if order is not None and hit else None
            if order is None:
                self._revive()
                order = self._steering.next_order(hits, self.kills, self._dear_kills)
            before = self.kills
            hit = order is not None and self._execute(order)
            in_vain = 0 if order is None or hit else in_vain + 1
            # Now and then also after an order to which nobody came: things have to move.
            if order is None or in_vain >= MOST_IN_VAIN:
                in_vain = 0
                self._kill_at_random()
            if order is not None and order.is_dear:
                self._dear_kills += self.kills - before
            if self._dice.random() < 0.05:
                self._stop_somebody()
        self._revive()

    def finish(self) -> None:
        """Lets all trainers go on for a little, and end in order. Raises Stuck."""
        self._board.allow(max(self._board.allowed, self._board.taken + 2 * len(WORKS)))
        self._wait(lambda: self._board.taken >= self._board.allowed, STUCK_AFTER_S)
        self._board.end()
        self._wait(lambda: not self._trainers, STUCK_AFTER_S)
        self.watch.end()

    def abort(self) -> None:
        """Ends the trainers at once."""
        self._board.end()
        for pid in self._trainers:
            kill(pid)
            os.waitpid(pid, 0)
        self._trainers.clear()
        self.watch.end()

    def stop_daemon(self) -> None:
        """Ends the last daemon in order; one is started first, should none run: it reclaims what others left."""
        for command in (["run", "--detach"], ["stop"]):
            subprocess.run([sys.executable, "-m", "prefetchd", *command], check=True, stdout=subprocess.DEVNULL)
        self._wait(lambda: not self._processes.all(), 20.0, fails=False)

    def leaked(self) -> list[str]:
        """Returns whatever is left of daemons that have ended."""
        left = [f"process {each.pid}, {each.role}" for each in self._processes.all()]
        prefix = f"prefetchd-{self._paths.instance}-"
        left += [f"segment {name}" for name in os.listdir("/dev/shm") if name.startswith(prefix)]
        files = (self._paths.socket, self._paths.lock, self._paths.start_lock)
        left += [f"file {path}" for path in files if path.exists()]
        return left + [f"file {name} in the directory of batches" for name in left_over(self._directory)]

    def say_where_it_is(self) -> None:
        """Says everybody's state, for whoever is to find out why nothing goes on."""
        status = subprocess.run([sys.executable, "-m", "prefetchd", "status"], capture_output=True, text=True)
        self._say(status.stdout + status.stderr)
        self._say(f"processes: {self._processes.all()}, trainers: {self._trainers}, daemon: {self.watch.pid}")
        self._say(f"taken {self._board.taken} of {self._board.allowed}")

    # --- kills ---

    def _execute(self, order: Order) -> bool:
        """Carries the order out. Returns False when nobody came to the point in time."""
        self._orders += 1
        fired = Path(f"{self.order_file}.{self._orders}")
        self._note(f"order {order.point}:{order.nth} {order.stimulus}")
        write_order(self.order_file, self._orders, order.point, order.nth)
        stimulated = False
        busy_s = time.monotonic()
        deadline_s = busy_s + ORDER_WITHIN_S

        def over() -> bool:
            nonlocal busy_s, stimulated
            now_s = time.monotonic()
            # Just after a death there may be nobody yet whom to kill.
            stimulated = stimulated or self._stimulate(order.stimulus)
            if self._grant() or not stimulated:
                busy_s = now_s
            return fired.exists() or now_s > deadline_s or now_s > busy_s + IDLE_ORDER_S

        self._wait(over, STUCK_AFTER_S)
        write_order(self.order_file, 0)
        hit = fired.exists()
        if hit:
            # Whoever has taken the order may have died of its stimulus before it could tell.
            self._wait(lambda: kills_by_point(self.kill_log)[order.point] > 0, ORDER_WITHIN_S, fails=False)
            hit = kills_by_point(self.kill_log)[order.point] > 0
        self._note("hit" if hit else "in vain")
        self._steering.tell(order.point, hit=hit)
        return hit

    def _stimulate(self, stimulus: str) -> bool:
        """Does what brings a process to the point. Returns False when there is nobody to do it to."""
        if stimulus.startswith("kill"):
            return self._kill_one(stimulus.split()[-1])
        if stimulus == "stop the daemon" and self.watch.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.watch.pid, signal.SIGTERM)
                self.stops.append(time.monotonic())
        elif stimulus == "have the daemon keep its rings" and self.watch.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.watch.pid, signal.SIGUSR1)
        elif "loader" in stimulus:
            fresh = stimulus.startswith("fresh")
            alone = [number for number, work in enumerate(WORKS) if not (fresh and work.is_shared)]
            if stimulus.endswith("long batches"):
                alone = [number for number in alone if WORKS[number].collate_fn is not None]
            several = "loaders" in stimulus
            for number in alone if several else [self._dice.choice(alone)]:
                self._board.renew(number, fresh=fresh)
            if several:
                return self._kill_one("daemon")
        elif stimulus.startswith("break off"):
            for number, work in enumerate(WORKS):
                # Of those that do so of themselves: others may come to another order with it.
                if work.breaks and (work.reseeds or "reseeded" not in stimulus):
                    self._board.break_off(number)
        return True

    def _kill_at_random(self) -> None:
        role = self._dice.choices(list(RANDOM_ROLES), list(RANDOM_ROLES.values()))[0]
        pause_s = time.monotonic() + self._dice.random() * 0.1
        self._grant()
        self._wait(lambda: time.monotonic() > pause_s, STUCK_AFTER_S)
        for each in role.split(" and "):
            self._kill_one(each)
        self._dear_kills += role in ("env", "daemon", "daemon and trainer")

    def _kill_one(self, role: str) -> bool:
        """Kills one process of the role. Returns False when there is none."""
        pids = list(self._trainers) if role == "trainer" else self._processes.of(role)
        if not pids:
            return False
        pid, killed_s = self._dice.choice(pids), time.monotonic()
        if not kill(pid):
            return False
        self._killed[pid] = killed_s
        self._note(f"killed {role} {pid}")
        self.at_random[role] += 1
        return True

    def _stop_somebody(self) -> None:
        """Sends SIGSTOP and, a little later, SIGCONT: no death, but a long pause."""
        pids = [*self._trainers, *(each.pid for each in self._processes.all())]
        pid = self._dice.choice(pids)
        self._note(f"stopped {pid}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            until_s = time.monotonic() + self._dice.random() * STOPPED_AT_MOST_S
            self._wait(lambda: time.monotonic() > until_s, STUCK_AFTER_S)
            os.kill(pid, signal.SIGCONT)

    def _revive(self) -> None:
        """Waits until a daemon serves again, before the next kill: too many deaths of beginners in a row are an error
        by design. The others come back while the next kill is under way."""

        def serves() -> bool:
            if not self._grant() and not self.watch.pid and self._board.taken >= self._board.allowed:
                # So far nobody has missed it: what they took was ready.
                self._board.allow(self._board.taken + 1)
            return bool(self.watch.pid)

        self._wait(serves, STUCK_AFTER_S)

    # --- the watch ---

    def _wait(self, over: Callable[[], object], at_most_s: float, *, fails: bool = True) -> None:
        """Looks after everybody until over() is true. Raises Stuck after `at_most_s`."""
        deadline_s = time.monotonic() + at_most_s
        while not over():
            if time.monotonic() > deadline_s:
                if fails:
                    raise Stuck(f"for {at_most_s:.0f} s")
                return
            self._look()
            time.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        if happened := self.watch.look():
            self._note(happened)
        self._watch_trainers()
        now_s = time.monotonic()
        if now_s > self._told_s + PROGRESS_EVERY_S:
            self._told_s = now_s
            self._tell()
        if self._board.taken != self._taken_at[0] or self._board.taken >= self._board.allowed:
            self._taken_at = (self._board.taken, now_s)
        elif now_s > self._taken_at[1] + STUCK_AFTER_S:
            raise Stuck(f"no batch for {STUCK_AFTER_S:.0f} s, though some are allowed")

    def _watch_trainers(self) -> None:
        while self._trainers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            number = self._trainers.pop(pid, None)
            if number is None:
                continue
            if status not in (0, signal.SIGKILL):
                self.unexpected.append(f"trainer {WORKS[number].name!r} ended with status {status}")
            if self._board.running:
                self._start(number)

    def _start(self, number: int) -> None:
        self._lives[number] += 1
        pid = start_trainer(WORKS[number], number, self._lives[number], self._seed, self._board, self._directory)
        self._trainers[pid] = number

    def _grant(self) -> bool:
        """Allows a batch more, up to what the kills so far are enough for. Returns False when all those were taken."""
        now_s = time.monotonic()
        most = BATCHES_A_KILL * (self.kills + 1)
        if self._board.taken >= self._board.allowed - 1 and now_s > self._granted_s + GRANT_EVERY_S:
            self._granted_s = now_s
            self._board.allow(min(most, self._board.taken + 3))
        return self._board.taken < most

    def _note(self, text: str) -> None:
        """Writes one line of the diary, for whoever is to find out what happened."""
        with (self._directory / "diary").open("a") as diary:
            diary.write(f"{time.monotonic():.3f} {text}\n")

    def _tell(self) -> None:
        for trail in self.trails:
            trail.read_on()
        wrong = sum(len(trail.wrong) for trail in self.trails) + len(self.unexpected)
        hits = kills_by_point(self.kill_log)
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        self._say(
            f"{minutes}:{seconds:02} {self.kills} of {self._wanted_kills} kills, {sum(hits.values())} at {len(hits)} "
            f"points; {len(self.watch.deaths)} daemons; {self.batches} batches, {wrong} wrong"
        )
