#!/usr/bin/env python3
"""What the gate is worth and what it costs: tables for people to read.

    python3 gate/bench.py                      everything, in some minutes
    python3 gate/bench.py --quick              everything smaller, in less than one
    python3 gate/bench.py simulation waiters   only these sections

Nothing here passes or fails. Seconds on one machine say little about another; what can be compared are the figures
that stand in one table, measured in turns or under the same load.
"""
import argparse
import collections
import fcntl
import functools
import heapq
import importlib.util
import itertools
import math
import multiprocessing
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # leave no __pycache__ beside the module

import gwt_gate  # noqa: E402
from gwt_gate import Gate, State  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DAY_S = 86400.0
WEEK_S = 7 * DAY_S
FORK = multiprocessing.get_context('fork')  # a lane is a process of its own, but need not start an interpreter

temporary = functools.partial(tempfile.TemporaryDirectory, prefix='gwt-gate-bench-')


def heading(text, *explanation):
    print('\n== ' + text, *explanation, '', sep='\n')


def table(rows):
    """Print rows of texts as columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:]))
        print('  '.join(['', first.ljust(widths[0]), *cells]).rstrip())


def percent(share):
    return '%.0f %%' % (100 * share)


def ms(seconds):
    return '%.2f' % (1000 * seconds)


# --- The simulation: sites ------------------------------------------------------------------------------------------


class Site:
    """A site that tolerates one request every `fair_s` seconds, counted in windows of `window_s` seconds.

    `possible` is the number of requests that a client gets served in a week if it knows the rule. `retry_after_s` is
    what the last refusal asked for, None where the site does not say.
    """

    window_s = 600.0

    def __init__(self, fair_s):
        self.fair_s = fair_s
        self.room = math.ceil(self.window_s / fair_s)
        self.possible = self.room * WEEK_S / self.window_s
        self.served = self.refusals = self.blocks = 0
        self.blocked_until = -math.inf
        self.retry_after_s = None
        self.served_at = collections.deque()

    def answer(self, now):
        """Return '' for a page, 'refused' for a 429, 'blocked' for whoever is locked out until `blocked_until`."""
        if now >= self.blocked_until:
            if self.admits(now):
                self.served += 1
                return ''
            length_s = self.punishment(now)
            if not length_s:
                self.refusals += 1
                return 'refused'
            self.blocks += 1
            self.blocked_until = now + length_s
        self.refusals += 1
        return 'blocked'

    def admits(self, now):
        """Say whether the window that ends now has room for one more, and count it in if so."""
        while self.served_at and self.served_at[0] <= now - self.window_s:
            self.served_at.popleft()
        if len(self.served_at) == self.room:
            return False
        self.served_at.append(now)
        return True

    def punishment(self, now):
        """Return for how many seconds a refused client is locked out."""
        return 0


class StrictSite(Site):
    """counts over ten minutes; the fifth refusal within 24 hours blocks for 24 hours"""

    def __init__(self, fair_s):
        super().__init__(fair_s)
        self.refused_at = collections.deque(maxlen=5)

    def punishment(self, now):
        self.refused_at.append(now)
        if len(self.refused_at) < 5 or self.refused_at[0] <= now - DAY_S:
            return 0
        self.refused_at.clear()
        return DAY_S


class DoublingSite(Site):
    """counts over five minutes; a 429 ignored for a minute blocks for an hour, the next time for two, then four"""

    window_s = 300.0  # archive.org has described its own rule in this way
    warned_at = None

    def admits(self, now):
        admitted = super().admits(now)
        if admitted:
            self.warned_at = None
        return admitted

    def punishment(self, now):
        if self.warned_at is None:
            self.warned_at = now
        if now <= self.warned_at + 60:
            return 0
        self.warned_at = None
        return 3600.0 * 2 ** self.blocks


class BucketSite(Site):
    """an API with a bucket of 30 tokens; says in Retry-After when the next one is there, and never blocks"""

    size = 30.0

    def __init__(self, fair_s):
        super().__init__(fair_s)
        self.possible = self.size + WEEK_S / fair_s
        self.tokens, self.filled_at = self.size, 0.0

    def admits(self, now):
        self.tokens = min(self.size, self.tokens + (now - self.filled_at) / self.fair_s)
        self.filled_at = now
        if self.tokens < 1:
            self.retry_after_s = math.ceil((1 - self.tokens) * self.fair_s)
            return False
        self.tokens -= 1
        return True


SITES = {'strict': StrictSite, 'doubling': DoublingSite, 'bucket': BucketSite}


# --- The simulation: clients ----------------------------------------------------------------------------------------


class SimulatedGate(Gate):
    """A gate with its state in memory and a number for the time; verbs and rules are the module's own."""

    def __init__(self, **settings):
        self.now = 0.0
        super().__init__('/simulated', clock=lambda: self.now, **settings)
        self.state = State(self.settings.start)

    def _change(self, decide, carried=None, mend=False):
        return decide(self._view(self.state))

    def wait(self, lane, account=None, **others):
        """Let the time pass until the slot, as `Gate.wait` does, but in one leap instead of a second at a time."""
        state, settings, started = self.state, self.settings, self.now
        waiter = {'ticket': None, 'lane': lane, 'priority': False}
        while True:
            now = self.now = max(self.now, gwt_gate.free_at(state, settings, waiter)[0])
            gwt_gate.settle(state, now)
            gwt_gate.speed_up(state, settings, now)
            if gwt_gate.ask(state, settings, now, now, waiter, account) is None:
                return now - started


def behind_the_gate(site, **settings):
    """Ask for a week through the gate: report `hit` on each refusal, and `block` for its length on a block."""
    gate = SimulatedGate(**settings)
    while True:
        gate.wait('lane')
        if gate.now >= WEEK_S:
            return
        answer = site.answer(gate.now)
        if answer:
            gate.hit('lane', answer, site.retry_after_s)
        if answer == 'blocked':
            gate.block((site.blocked_until - gate.now) / 3600, answer)


def without_gate(site, lanes=1, pace_s=15.0, doubling=False, told=True):
    """Ask for a week with `lanes` that know nothing of each other, each at `pace_s`.

    A refused lane waits for Retry-After, at least for its pace, and with `doubling` twice as long after each refusal
    in a row, up to 15 minutes. With `told` it keeps still while it is blocked.
    """
    queue = [(lane * pace_s / lanes, lane, pace_s) for lane in range(lanes)]
    while True:
        now, lane, delay_s = queue[0]
        if now >= WEEK_S:
            return
        answer = site.answer(now)
        delay_s = min(2 * delay_s, 900.0) if answer and doubling else pace_s
        wait_s = max(delay_s, site.retry_after_s or 0) if answer else pace_s
        if answer == 'blocked' and told:
            wait_s = site.blocked_until - now
        heapq.heapreplace(queue, (now + wait_s, lane, delay_s))


CLIENTS = {
    'gate as shipped': behind_the_gate,
    'gate, remember 7 days': functools.partial(behind_the_gate, remember=WEEK_S),
    'five lanes, each 15 s and back-off': functools.partial(without_gate, lanes=5, doubling=True, told=False),
    'one pace, 15 s': without_gate,
    'one pace, 40 s': functools.partial(without_gate, pace_s=40.0),
    'one pace, 15 s, doubling back-off': functools.partial(without_gate, doubling=True),
}


def simulate(case):
    """Return (requests served, requests possible, refusals, blocks) of one client at one site."""
    client, kind, fair_s = case
    site = SITES[kind](fair_s)
    CLIENTS[client](site)
    return site.served, site.possible, site.refusals, site.blocks


def simulation(options):
    """The gate and other habits, on simulated time."""
    count = 8 if options.quick else 200
    rng = random.Random(options.seed)
    fair = [4 + 36 * (number + rng.random()) / count for number in range(count)]
    heading('simulation: one week at %d sites of each kind, which tolerate one request every 4 to 40 s' % count,
            "The gate's own rules on simulated time, always with a next request to make. Behind the gate a refusal is",
            'reported with `hit`, a block with `block` for its length, as by somebody who reads the notice. The others',
            'keep still for as long, except the five lanes, whom nobody tells. served: share of what clients that know',
            'the rules get from all these sites; refused, blocks: per site and week.',
            *('  %s: %s' % (kind, site.__doc__) for kind, site in SITES.items()))
    cases = list(itertools.product(CLIENTS, SITES, fair))
    with FORK.Pool(cores()) as pool:
        results = iter(pool.map(simulate, cases, 4))
    rows = [['', *(cell for kind in SITES for cell in (kind, '', ''))],
            ['', *(cell for _ in SITES for cell in ('served', 'refused', 'blocks'))]]
    for client in CLIENTS:
        rows.append([client])
        for _ in SITES:
            columns = zip(*itertools.islice(results, count))
            served, possible, refusals, blocks = (sum(column) / count for column in columns)
            rows[-1] += [percent(served / possible), '%.*f' % (refusals < 100, refusals), '%.1f' % blocks]
    table(rows)


# --- What a call costs ----------------------------------------------------------------------------------------------


def alternate(rounds, actions):
    """Run the actions in turns; return the median seconds of each. The first round does not count."""
    times = [[] for _ in actions]
    for _ in range(rounds + 1):
        for action, taken in zip(actions, times):
            began = time.perf_counter()
            action()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken[1:]) for taken in times]


def start(options):
    """One `gwt-gate wait` as a process, with its byte code in place."""
    rounds = 15 if options.quick else 100
    heading('start: one call as a process, nothing to wait for; medians of %d runs in turns' % rounds)
    environment = {name: value for name, value in os.environ.items()
                   if name != 'PYTHONDONTWRITEBYTECODE' and not name.startswith('GWT_GATE_')}
    with temporary() as directory:
        for name in ('gwt_gate.py', 'gwt-gate'):
            shutil.copy(os.path.join(HERE, name), directory)
        commands = {
            'python3 -c pass': ['-c', 'pass'],
            "python3 -c 'import argparse, json, fcntl'": ['-c', 'import argparse, json, fcntl'],
            'gwt-gate wait LANE': [os.path.join(directory, 'gwt-gate'), 'wait', 'lane', '--start', '0.000001',
                                   '--floor', '0.000001', '--dir', os.path.join(directory, 'site')]}
        medians = alternate(rounds, [
            functools.partial(subprocess.run, [sys.executable, *arguments], env=environment, check=True)
            for arguments in commands.values()])
    table([['', 'ms', 'x pass', 'x imports']] + [
        [name, ms(taken), '%.2f' % (taken / medians[0]), '%.2f' % (taken / medians[1])]
        for name, taken in zip(commands, medians)])


def status(options):
    """`status` with a long log and with a short one."""
    rounds = 50 if options.quick else 500
    heading('status: a call of `Gate.status_and_log`, by the length of calls.log; medians of %d in turns' % rounds)
    line = b'2026-11-30T12:00:00Z CALL lane gap=15.0\n'
    with temporary() as directory:
        sizes = {'1 kB': 1000, '1 MB': 1000000, '200 MB': 200000000}
        gates = [Gate(os.path.join(directory, name), start=1e-6, floor=1e-6) for name in sizes]
        for gate, size in zip(gates, sizes.values()):
            gate.wait('lane')
            with open(os.path.join(gate.directory, 'calls.log'), 'wb') as log:
                lines = line * (min(1000000, size) // len(line))
                log.writelines(lines for _ in range(size // len(lines)))
        medians = alternate(rounds, [gate.status_and_log for gate in gates])
    table([['calls.log', 'ms', 'x 1 kB']] + [
        [name, ms(taken), '%.2f' % (taken / medians[0])] for name, taken in zip(sizes, medians)])


# --- Lanes ----------------------------------------------------------------------------------------------------------
# Each of these makes a function that returns when the lane has a slot; the value is the time of the slot in seconds.


class WatchedGate(Gate):
    """A gate that keeps the time of its last decision, by its own clock: a slot is given at that moment."""

    def _ask(self, turn, waiter, account):
        self.decided_at = turn.now
        return super()._ask(turn, waiter, account)


def from_gate(directory, gap_s, lane, **settings):
    gate = WatchedGate(os.path.join(directory, 'site'), start=gap_s, floor=gap_s, **settings)

    def take():
        gate.wait(lane)
        return gate.decided_at

    return take


def from_flock(directory, gap_s, lane):
    """The shell's `flock FILE sleep GAP && ...`, without the cost of starting two programs."""
    def take():
        with open(os.path.join(directory, 'lock'), 'w') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(gap_s)
        return time.monotonic()

    return take


def from_pyrate(directory, gap_s, lane, **settings):
    """PyrateLimiter 4 as it is meant for several processes: SQLite and a file lock."""
    from pyrate_limiter import Limiter, Rate, SQLiteBucket
    limiter = Limiter(SQLiteBucket.init_from_file([Rate(1, round(1000 * gap_s))], use_file_lock=True,
                                                  db_path=os.path.join(directory, 'bucket.sqlite')), **settings)

    def take():
        limiter.try_acquire('site')
        return time.monotonic()

    return take


class Ended(BaseException):
    """The time of this lane is over."""


def run_lane(way, directory, gap_s, lane, begin, results):
    """Take slots until SIGTERM or an error; send the times of the slots, the CPU seconds and the error."""
    slots, error, used_before, used = [], None, 0.0, 0.0

    def end(number, frame):
        nonlocal used
        used = time.process_time()
        raise Ended

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench gets it too, and ends its lanes
    try:
        take = way(directory, gap_s, lane)
        time.sleep(max(0.0, begin - time.monotonic()))
        used_before = time.process_time()
        while True:
            slots.append(take())
    except Ended:
        pass
    except Exception as problem:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        error, used = repr(problem), time.process_time()
    results.send((slots, used - used_before, error))


def run_lanes(ways, gap_s, seconds, meanwhile=None):
    """Let lanes take slots beside each other for so long; return what each sends.

    `meanwhile(directory, end)` is called when all of them have begun, and is to return at `end` (monotonic).
    """
    lanes = []
    with temporary() as directory:
        begin = time.monotonic() + 0.1 + 0.005 * len(ways)
        try:
            for number, way in enumerate(ways):
                receiver, sender = FORK.Pipe(False)
                process = FORK.Process(target=run_lane, daemon=True, args=(
                    way, directory, gap_s, 'lane-%d' % number, begin, sender))
                process.start()
                lanes.append((process, receiver))
                sender.close()
            time.sleep(max(0.0, begin - time.monotonic()))
            if meanwhile:
                meanwhile(directory, begin + seconds)
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
        finally:
            for process, _ in lanes:
                process.terminate()
            for process, _ in lanes:
                process.join()
    return [receiver.recv() for _, receiver in lanes]


def shared(ways, gap_s, seconds):
    """Return (slots of each lane in so many seconds, shortest time between two slots, CPU seconds per 1000 slots).

    The slots are counted from one second on: by then all lanes stand in the queue.
    """
    results = run_lanes(ways, gap_s, 1 + seconds)
    for error in {error for _, _, error in results if error}:
        print('  a lane has ended early: %s' % error)
    every = sorted(itertools.chain.from_iterable(slots for slots, _, _ in results))
    begin = every[0] + 1
    served = [sum(begin <= slot < begin + seconds for slot in slots) for slots, _, _ in results]
    closest_s = min(later - earlier for earlier, later in zip(every, every[1:]))
    return served, closest_s, 1000 * sum(cpu_s for _, cpu_s, _ in results) / len(every)


def lanes(options):
    """Slots that were used, fairness and CPU, beside a shell loop and PyrateLimiter."""
    seconds = 2 if options.quick else 20
    heading('lanes: processes that always want a slot, for %d s' % seconds,
            'used: share of the possible slots; least, most: slots of the worst and the best served lane; closest:',
            'shortest time between two slots, in gaps (the gate: by its own clock); CPU: seconds per 1000 slots, all',
            'lanes together, without the start of the interpreter')
    rows = [['', 'lanes', 'gap', 'used', 'least', 'most', 'closest', 'CPU']]
    ways = {'gate': from_gate, 'flock and sleep': from_flock, 'PyrateLimiter': from_pyrate,
            'PyrateLimiter, buffer 1 ms': functools.partial(from_pyrate, buffer_ms=1)}
    for count, gap_s, names in ((8, 0.05, list(ways)), (30, 0.05, ['gate', 'flock and sleep']), (20, 0.1, ['gate'])):
        for name in names:
            rows.append([name, '%d' % count, '%g s' % gap_s])
            if 'Pyrate' in name and importlib.util.find_spec('pyrate_limiter') is None:
                rows[-1] += ['not installed', '', '', '', '']
                continue
            served, closest_s, cpu_s = shared(count * [ways[name]], gap_s, seconds)
            rows[-1] += [percent(sum(served) * gap_s / seconds), '%d' % min(served), '%d' % max(served),
                         '%.3f' % (closest_s / gap_s), '%.1f s' % cpu_s]
    table(rows)


def priority(options):
    """The share of a priority lane against two ordinary ones."""
    seconds = 3 if options.quick else 20
    heading('priority: one priority lane and two ordinary ones, always asking; share 3, gap 0.05 s, %d s' % seconds)
    served, _, _ = shared([functools.partial(from_gate, priority='lane-0'), from_gate, from_gate], 0.05, seconds)
    table([['', 'slots', 'share']] + [
        [name, '%d' % count, '%.1f %%' % (100 * count / sum(served))]
        for name, count in zip(('priority lane', 'ordinary lane', 'ordinary lane'), served)])


def seconds_behind(count, number):
    """Return the seconds from one slot to the next, gap 1 s, behind `count` waiters who got the signal `number`."""
    with temporary() as directory:
        gate = Gate(os.path.join(directory, 'site'), start=3600)
        gate.wait('first')
        waiters = [FORK.Process(target=gate.wait, args=('waiter',), daemon=True) for _ in range(count)]
        try:
            for process in waiters:
                process.start()
            while len(gate.status().get('waiting', ())) < count:
                time.sleep(0.01)
            for process in waiters:
                os.kill(process.pid, number)
            # all of this took its time: let the first slot be now, and the gap short
            gate._change(lambda turn: turn.state.__dict__.update(gap_s=1.0, last_call_at=turn.now))
            began = time.monotonic()
            gate.wait('next')
            return time.monotonic() - began
        finally:
            for process in waiters:
                process.kill()
                process.join()


def waiters(options):
    """Waiters that will never come, and 200 that will."""
    rounds = 1 if options.quick else 5
    heading('waiters: from one slot to the next, gap 1 s, with dead waiters in front; longest of %d' % rounds)
    table([['in front', 'seconds']] + [
        [text, '%.2f' % max(seconds_behind(count, number) for _ in range(rounds))]
        for text, count, number in (('nobody', 0, signal.SIGKILL), ('3 killed', 3, signal.SIGKILL),
                                    ('3 stopped', 3, signal.SIGSTOP), ('60 killed', 60, signal.SIGKILL))])

    seconds = 3 if options.quick else 20
    heading('waiters: `status` beside processes that all want a slot at once, gap 0.5 s, for %d s' % seconds)

    def look(directory, end):
        gate = Gate(os.path.join(directory, 'site'))
        while time.monotonic() < end:
            began = time.monotonic()
            gate.status()
            taken.append(time.monotonic() - began)
            time.sleep(0.05)

    rows = [['processes', 'errors', 'slots', 'median ms', 'longest ms']]
    for count in (1, 200):
        taken = []
        results = run_lanes(count * [from_gate], 0.5, seconds, look)
        rows.append(['%d' % count, '%d' % sum(error is not None for _, _, error in results),
                     '%d' % sum(len(slots) for slots, _, _ in results),
                     ms(statistics.median(taken)), ms(max(taken))])
    table(rows)


# --- The machine and the command line -------------------------------------------------------------------------------


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def file_system(path):
    """Return the type of the file system that holds a path, where /proc/mounts tells."""
    try:
        with open('/proc/mounts', encoding='utf-8', errors='replace') as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        mounts = []
    return max(((len(mount), kind) for mount, kind in mounts if os.path.commonpath([mount, path]) == mount),
               default=(0, 'an unknown file system'))[1]


SECTIONS = {'simulation': simulation, 'start': start, 'status': status, 'lanes': lanes, 'priority': priority,
            'waiters': waiters}


def main():
    parser = argparse.ArgumentParser(description='Print what the gate is worth and what it costs.')
    parser.add_argument('sections', nargs='*', metavar='SECTION', help='%s; all without one' % ', '.join(SECTIONS))
    parser.add_argument('--quick', action='store_true', help='everything smaller, in less than a minute')
    parser.add_argument('--seed', type=int, default=1, help='of the simulated sites (1)')
    options = parser.parse_args()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error('no such section: %s' % name)
    sys.stdout.reconfigure(line_buffering=True)
    place = os.path.realpath(tempfile.gettempdir())
    print('gwt-gate %s, %s %s, %s %s %s, %d cores, load %.1f, %s on %s; seed %d%s' % (
        gwt_gate.__version__, platform.python_implementation(), platform.python_version(), platform.system(),
        platform.release(), platform.machine(), cores(), os.getloadavg()[0], place, file_system(place),
        options.seed, ', quick' if options.quick else ''))
    began = time.monotonic()
    for name in options.sections or SECTIONS:
        SECTIONS[name](options)
    print('\n%d s in all' % (time.monotonic() - began))


if __name__ == '__main__':
    main()
