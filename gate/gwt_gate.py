"""Give every program on this machine one common pace towards a website that blocks who asks too often.

Scripts and agents ("lanes") ask the gate for leave before each request; it gives out one slot at a time to all of
them together, slows down hard when the site says "too fast", speeds up slowly while all is quiet, and says why
whenever it says no. Shell scripts use the program `gwt-gate` beside this file, Python lanes the class `Gate`:

    gate = Gate('~/.cache/gwt-gate/www.example.org')
    gate.wait('my-lane')          # returns when this lane may send one request
    gate.hit('my-lane', '429')    # the site said "too fast": everybody slows down and pauses

There is no daemon. The processes meet in the gate directory:

    lock         the flock that every read and write of the state takes
    state.json   pace, pause, queue: replaced as a whole, never changed in place
    calls.log    one line per event, for people

The file reads from top to bottom: words and values, the state, the rules (pure functions of state, settings and
time), the directory, the clock, `Gate` with one method per verb, other programs, walls, profiles, tokens.
"""
from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import stat
import sys
import time

try:
    import fcntl
except ImportError:
    raise ImportError('gwt-gate needs flock, which macOS and Linux have and Windows has not') from None

TYPE_CHECKING = False  # the name that type checkers know; importing `typing` would make every call dearer
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Callable, ClassVar, Iterable

    Waiter = dict[str, Any]
    Window = tuple[int, float, str]

__all__ = ['PARKED', 'Gate', 'GateError', 'Paused', 'challenge', 'load_profile', 'reread_token']
__version__ = '1.0.0'

PARKED = math.inf  # Paused.left while only a person or a new session can open the gate: there is no timer

STEP_UP = 3.0  # a hit multiplies the gap by this
STEP_DOWN = 0.8  # a quiet hour multiplies it by this: one hit takes about five quiet hours to forget
CLAIM_GAPS = 1.5  # a priority lane keeps its claim for so many gaps after a call: time to read the answer
GRACE_S = 1.0  # how long a free slot waits for the lane whose turn it is
LOOK_S = 1.0  # a waiting lane looks at the state at least this often, to notice a pause or a parking
LATE_GAPS = 0.1  # a slot handed over later than this part of the gap would come too close to the next one
LATE_S = 0.1  # but a busy machine needs this long now and then, however small the gap
LOCK_TIMEOUT_S = 30.0  # real seconds; whoever holds the lock that long has been stopped, not slow
NOTICE_TIMEOUT_S = 30.0  # real seconds; a dialog that waits for a click has told somebody by then
LONGEST_BLOCK_S = 366 * 86400.0  # a longer one is a slip of the keyboard
LONGEST_RETRY_AFTER_S = 30 * 86400.0  # sites do send absurd values
HOUR_S = 3600.0
TEXT_LIMIT = 2000  # characters of a text that the state and a notice keep
LINE_LIMIT = 500  # characters of a text in a log line or a message
FILE_LIMIT = 4 << 20  # bytes of a file from outside that are looked at
STATE_LIMIT = 16 << 20  # bytes; a larger state.json is not ours
TAIL_BYTES = 128 << 10  # ten log lines at their longest fit in
NO_REASON = '(no reason given)'


class GateError(Exception):
    """The gate cannot do its work (unusable directory, damaged state): nobody gets a slot."""


class DamagedState(GateError):
    """state.json holds something that no gate wrote; only `clear` goes past it."""


class Paused(Exception):
    """No slot now: do other work. `left` is in seconds (PARKED: no timer), `why` the reason."""

    def __init__(self, left: float, why: str, text: str) -> None:
        super().__init__(text)
        self.left = left
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:  # a pool of processes sends its exceptions home
        return type(self), (self.left, self.why, str(self))


class BadSetting(ValueError):
    """A setting that cannot be used. `field` is its Python name, `label` what the user wrote, `problem` the rest."""

    def __init__(self, field: str, problem: str, label: str = '') -> None:
        self.field, self.label, self.problem = field, label or field, problem
        super().__init__('%s %s' % (self.label, problem))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.problem, self.label)


# --- Texts and numbers from outside ---------------------------------------------------------------------------------


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """Return `text` without anything that could break a line or drive a terminal, at most `limit` characters."""
    text = text[:limit]
    if not text.isprintable():
        text = ''.join(c if c.isprintable() else c.encode('unicode_escape').decode('ascii') for c in text)
    return text[:limit]


def required(value: object, name: str) -> str:
    """Return a name that must be there, cut at TEXT_LIMIT; ValueError without one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError('%s must be a text that is not empty' % name)
    return value[:TEXT_LIMIT]


def reason(why: object) -> str:
    """Return the text of a report, which is never refused over its wording."""
    try:
        text = '' if why is None else str(why)
    except ValueError:  # a number of thousands of digits
        text = ''
    return text[:TEXT_LIMIT] if text.strip() else NO_REASON


def from_system(argument: str) -> str:
    """Return an argument or a variable as UTF-8 text, whatever the locale made of its bytes."""
    return os.fsencode(argument).decode('utf-8', 'surrogateescape')


def to_bytes(text: str) -> bytes:
    """Encode for the operating system; bytes that came in as surrogates leave as the same bytes."""
    try:
        return text.encode('utf-8', 'surrogateescape')
    except UnicodeEncodeError:  # half a surrogate pair, from somebody's JSON
        return text.encode('utf-8', 'backslashreplace')


def parse_number(text: str) -> int | float:
    """Read a number in plain ASCII notation; ValueError for the other things that int and float take (1_0, ٣)."""
    text = text.strip()
    if not text.isascii() or '_' in text:
        raise ValueError('not a number')
    return int(text) if text.isdigit() and len(text) < 300 else float(text)


def utc(moment: float) -> str:
    """Return a Unix time as 2026-11-30T12:00:00Z; what no calendar holds becomes its first or last second."""
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(min(max(moment, 0.0), 253402300799.0)))


def seconds_left(until: float, now: float) -> float:
    """Return the seconds to go, never negative, without the dust that subtracting two Unix times leaves."""
    return max(0.0, round(until - now, 6))


def whole(seconds: float) -> int:
    """Return seconds rounded up, bounded so that no setting can make it overflow."""
    return math.ceil(round(min(seconds, 1e15), 6))


def brief(number: float) -> str:
    """Return 60.0 as 60 and 2678400.0 as 2678400."""
    return '%.10g' % number


def gap_text(gap_s: float) -> str:
    """Return the gap as log lines show it: one decimal, below 1 s three."""
    return '%.*f' % (1 if gap_s >= 1 else 3, gap_s)


def pause_text(paused: bool, length_s: float) -> str:
    """Return what a log line says about the pause that a report asked for."""
    return 'pause=' + brief(length_s) if paused else 'pause kept'


def say(text: str) -> None:
    """Write one line to stderr. A closed stderr must not cost a lane its slot or lose a report."""
    if sys.stderr:
        try:
            print('gwt-gate: ' + one_line(text, 2 * TEXT_LIMIT), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass


# --- Settings -------------------------------------------------------------------------------------------------------


class Limit:
    """What a site publishes: at most `per_hour` requests in any hour, `burst` in any `cooldown` seconds.

    `windows` has one (requests, seconds, sentence) for each. A cooldown alone means one request (a Crawl-delay).
    Raises BadSetting for a number that cannot be one, and for a burst without a cooldown.
    """

    def __init__(self, per_hour: object = None, burst: object = None, cooldown: object = None) -> None:
        self.per_hour = None if per_hour is None else check_whole('per_hour', per_hour)
        self.burst = None if burst is None else check_whole('burst', burst)
        self.cooldown = None if cooldown is None else check_number('cooldown', cooldown)
        if self.burst is not None and self.cooldown is None:
            raise BadSetting('burst', 'needs a cooldown: the seconds in which so many requests are allowed')
        windows: list[Window] = []
        if self.cooldown is not None:
            requests = self.burst or 1
            windows.append((requests, self.cooldown, 'the site allows %d request%s every %s s' % (
                requests, '' if requests == 1 else 's', brief(self.cooldown))))
        if self.per_hour is not None:
            windows.append((self.per_hour, HOUR_S, 'the site allows %d request%s an hour' % (
                self.per_hour, '' if self.per_hour == 1 else 's')))
        self.windows = tuple(windows)


def check_number(field: str, value: object, zero: bool = False, infinite: bool = False) -> float:
    """Return `value` as a float above 0 (or also 0, or infinite); BadSetting otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadSetting(field, 'must be a number, not %r' % (value,))
    large_enough = value >= 0 if zero else value > 0
    if not large_enough or not (value < 1e300 or (infinite and value == math.inf)):
        raise BadSetting(field, 'must be a number %s%s, not %s' % (
            'of 0 or more' if zero else 'above 0', '' if infinite else ' and finite',
            'one that large' if math.inf > value >= 1e300 else value))
    return float(value)


def check_whole(field: str, value: object) -> int:
    """Return `value` as an int of 1 or more; BadSetting otherwise."""
    number = check_number(field, value)
    if number != int(number):
        raise BadSetting(field, 'must be a whole number of 1 or more, not %s' % (value,))
    return int(number)


SETTINGS = {  # name: (default, placeholder, meaning); the flag is --name, the variable GWT_GATE_NAME
    'start': (15.0, 'S', 'first gap, in seconds'),
    'floor': (8.0, 'S', 'smallest gap'),
    'ceil': (60.0, 'S', 'largest gap'),
    'step_after': (3600.0, 'S', 'quiet seconds before the gap shrinks'),
    'pause': (1200.0, 'S', 'pause of all lanes on a hit'),
    'remember': (0.0, 'S', 'how long the pace of a hit is not tried again, 0 is off'),
    'max_wait': (120.0, 'S', 'longest pause that wait sleeps through'),
    'share': (3, 'N', 'priority calls in a row before a slot is open to all'),
    'priority': ((), 'LANES', 'lanes that go first, separated by commas or spaces'),
    'per_hour': (None, 'N', 'requests that the site allows in an hour'),
    'burst': (None, 'N', 'requests that the site allows in --cooldown seconds'),
    'cooldown': (None, 'S', 'see --burst; without it one request'),
}
LIMITS = ('per_hour', 'burst', 'cooldown')
MAY_BE_ZERO = ('pause', 'remember', 'max_wait')


class Settings:
    """The numbers that the rules go by. `given` holds what was set; None and what is missing get the default."""

    def __init__(self, given: dict[str, Any]) -> None:
        def setting(name: str) -> Any:
            return SETTINGS[name][0] if given.get(name) is None else given[name]

        def number(name: str) -> float:
            return check_number(name, setting(name), zero=name in MAY_BE_ZERO, infinite=name == 'max_wait')

        self.start, self.floor, self.ceil = number('start'), number('floor'), number('ceil')
        self.step_after, self.pause, self.remember = number('step_after'), number('pause'), number('remember')
        self.max_wait = number('max_wait')
        if self.floor > self.ceil:
            if given.get('floor') is not None and given.get('ceil') is not None:
                raise BadSetting('floor', 'must not be above the ceil of %s' % brief(self.ceil))
            # the one that was given counts, the other's default gives way
            self.floor = self.ceil = self.floor if given.get('floor') is not None else self.ceil
        self.share = check_whole('share', setting('share'))
        self.limit = Limit(*(given.get(name) for name in LIMITS))
        priority = setting('priority')
        if isinstance(priority, str):
            priority = priority.replace(',', ' ').split()
        lanes = list(priority) if hasattr(priority, '__iter__') else [priority]
        if not all(isinstance(lane, str) for lane in lanes):
            raise BadSetting('priority', 'must be lane names, not %r' % (priority,))
        self.priority = frozenset(lanes)


# --- The state ------------------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and -1e301 < value < 1e301


def is_length(value: object) -> bool:
    return is_number(value) and value >= 0  # type: ignore[operator]


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_object(**fields: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a JSON object that has these fields (and maybe others)."""
    return lambda value: isinstance(value, dict) and all(
        name in value and check(value[name]) for name, check in fields.items())


def is_list(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def maybe(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


class State:
    """What state.json holds. Names in _at and _until are Unix seconds, names in _s durations in seconds."""

    gap_s: float  # seconds between two slots
    boot: dict[str, Any] | None  # ties the clock that runs since boot to Unix time: id, offset_s, wall_ahead_s
    last_call_at: float | None
    last_call_gap_s: float | None  # the gap that was in force then
    calls_at: list[float]  # calls made under a limit, oldest first, no more than the limit needs
    opened_at: float | None  # when a pause or parking last ended or the gap shrank: no slot was free before
    quiet_since: float | None  # where the count towards the next step down starts; ahead of now during a block
    pause: dict[str, Any] | None  # until, length_s, why
    last_hit: str
    too_fast: list[dict[str, float]]  # remembered hits: gap_s, at
    queue: list[Waiter]  # ticket, lane, priority; by ticket
    next_ticket: int  # numbers the waiting lanes, and the parkings
    claim: dict[str, float] | None  # of the priority lanes on the next slot: until, length_s
    priority_run: int  # priority calls since an ordinary lane was served
    human: dict[str, Any] | None  # a parking: lane, what, url, when, and number, probe_at, reminded_at
    expired: dict[str, dict[str, Any]]  # signed-out accounts: lane, why, session, when, mtime_ns

    CHECKS: ClassVar[dict[str, Callable[[Any], bool]]] = {
        'gap_s': lambda value: is_number(value) and value > 0,
        'boot': maybe(is_object(id=is_text, offset_s=is_number, wall_ahead_s=is_number)),
        'last_call_at': maybe(is_number),
        'last_call_gap_s': maybe(is_number),
        'calls_at': is_list(is_number),
        'opened_at': maybe(is_number),
        'quiet_since': maybe(is_number),
        'pause': maybe(is_object(until=is_number, length_s=is_length, why=is_text)),
        'last_hit': is_text,
        'too_fast': is_list(is_object(gap_s=is_number, at=is_number)),
        'queue': is_list(is_object(ticket=is_count, lane=is_text, priority=lambda value: type(value) is bool)),
        'next_ticket': is_count,
        'claim': maybe(is_object(until=is_number, length_s=is_length)),
        'priority_run': is_count,
        'human': maybe(is_object(lane=is_text, what=is_text, url=is_text, when=is_text, number=is_count,
                                 probe_at=maybe(is_number), reminded_at=maybe(is_number))),
        'expired': lambda value: isinstance(value, dict) and all(map(is_object(
            lane=is_text, why=is_text, session=is_text, when=is_text,
            mtime_ns=maybe(lambda ns: type(ns) is int)), value.values())),
    }

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.boot = self.last_call_at = self.last_call_gap_s = self.opened_at = self.quiet_since = None
        self.pause = self.claim = self.human = None
        self.last_hit = ''
        self.calls_at, self.too_fast, self.queue, self.expired = [], [], [], {}
        self.next_ticket = self.priority_run = 0
        self.unknown: dict[str, Any] = {}  # keys of another version

    @classmethod
    def from_json(cls, text: str, start_s: float) -> State:
        """Read a state; a missing key has its default, an unknown one rides along. DamagedState says what is wrong."""
        try:
            data = json.loads(text)
            json.dumps(data, allow_nan=False)  # reading takes NaN, Infinity and 1e999
        except (ValueError, RecursionError):
            raise DamagedState('it is not JSON') from None
        if not isinstance(data, dict):
            raise DamagedState('it is not a JSON object')
        for name, check in cls.CHECKS.items():
            if name in data and not check(data[name]):
                raise DamagedState('"%s" has a value that it cannot have' % name)
        state = cls(start_s)
        for name, value in data.items():
            if name in cls.CHECKS:
                setattr(state, name, value)
            else:
                state.unknown[name] = value
        return state

    def to_json(self) -> str:
        known = {name: getattr(self, name) for name in self.CHECKS}
        return json.dumps({**known, **self.unknown}, allow_nan=False) + '\n'


# --- The rules: functions of state, settings and time ---------------------------------------------------------------
# They touch no file and no clock. Those that change the state say so; the caller holds the lock.


def after(moment: float, seconds: float) -> float:
    """Return the first time that a float can hold which is not less than `seconds` after `moment`."""
    due = moment + seconds
    return due if due - moment >= seconds else due * (1 + 2.0 ** -52)


def change_times(state: State, change: Callable[[float, float], float]) -> None:
    """Change every time in the state to what `change` makes of it and of how far ahead of now it may lie."""
    for timed in (state.pause, state.claim):
        if timed:
            timed['until'] = change(timed['until'], timed['length_s'])
    if state.quiet_since is not None:  # ahead of now during a block
        state.quiet_since = change(state.quiet_since, state.pause['length_s'] if state.pause else 0.0)
    if state.last_call_at is not None:
        state.last_call_at = change(state.last_call_at, 0.0)
    if state.opened_at is not None:
        state.opened_at = change(state.opened_at, 0.0)
    state.calls_at = [change(at, 0.0) for at in state.calls_at]
    for hit in state.too_fast:
        hit['at'] = change(hit['at'], 0.0)
    for name in ('probe_at', 'reminded_at'):
        if state.human and state.human[name] is not None:
            state.human[name] = change(state.human[name], 0.0)


def settle(state: State, now: float) -> None:
    """Change the state so that it holds nothing that cannot be: cut times to come, drop a pause that has ended.

    A clock that jumped back leaves times ahead of now. Whatever they stand for lasts at most as long as it was
    meant to last, counted from now.
    """
    change_times(state, lambda moment, ahead_s: min(moment, now + ahead_s))
    if state.pause and state.pause['until'] <= now:
        state.opened_at = state.pause['until']
        state.pause = None


def prolong(state: State, now: float, length_s: float, why: str) -> bool:
    """Change the pause to one of `length_s` from now if that ends later than the running one; return whether."""
    until = now + length_s
    if state.pause and until <= state.pause['until']:
        return False
    state.pause = {'until': until, 'length_s': length_s, 'why': why}
    return True


def block(state: State, now: float, length_s: float, why: str) -> bool:
    """Change the pause as `prolong` does, by one whose time is no quiet time; return whether."""
    prolonged = prolong(state, now, length_s, why)
    if prolonged:
        state.quiet_since = now + length_s
    return prolonged


def slow_down(state: State, settings: Settings, now: float, when: str, why: str) -> None:
    """Change the gap as a hit does: tripled, at most to `ceil`; the quiet count starts again."""
    if settings.remember > 0 and state.last_call_gap_s is not None:
        # ten reports of one wall are one memory: its gap, from the last report on
        state.too_fast = [r for r in state.too_fast
                          if now < r['at'] + settings.remember and r['gap_s'] > state.last_call_gap_s]
        state.too_fast.append({'gap_s': state.last_call_gap_s, 'at': now})
    state.gap_s = max(state.gap_s, min(settings.ceil, STEP_UP * state.gap_s))
    state.last_hit = '%s %s' % (when, why)
    count_quiet_from(state, now)


def count_quiet_from(state: State, now: float) -> None:
    """Change where the quiet count starts: now, or at the end of a block that still runs."""
    state.quiet_since = max(now, state.quiet_since or now)


def park(state: State, settings: Settings, now: float, when: str, lane: str, what: str, url: str) -> bool:
    """Change the state to parked, and slow down as for a hit; return False, and change nothing, if it is already."""
    if state.human:
        return False
    slow_down(state, settings, now, when, what)
    state.human = {'lane': lane, 'what': what, 'url': url, 'when': when,
                   'number': state.next_ticket, 'probe_at': None, 'reminded_at': None}
    state.next_ticket += 1
    return True


def end_parking(state: State, now: float) -> None:
    """Change a parked state: lanes go on, unless there is a pause, and the quiet count starts."""
    state.human = None
    state.opened_at = now
    count_quiet_from(state, now)


def reopen(state: State, now: float) -> None:
    """Change the state so that nothing but the pace and the limit keeps a lane waiting."""
    if state.human:
        end_parking(state, now)
    if state.pause:
        state.pause, state.opened_at = None, now
    if state.quiet_since is not None:
        state.quiet_since = min(state.quiet_since, now)
    state.expired = {}


def renew(state: State, account: str, mtime_ns: int | None) -> bool:
    """Change a signed-out account to signed in if its session file is there and another one; return whether."""
    renewed = account in state.expired and mtime_ns not in (None, state.expired[account]['mtime_ns'])
    if renewed:
        del state.expired[account]
    return renewed


def remembered(state: State, settings: Settings) -> list[tuple[float, float]]:
    """Return (gap, end of the memory) for each hit that is remembered; over at its end."""
    return [(hit['gap_s'], hit['at'] + settings.remember) for hit in state.too_fast]


def not_below(state: State, settings: Settings, now: float) -> float:
    """Return the largest gap that a hit is remembered for at `now`, 0 without one."""
    return max((gap_s for gap_s, end in remembered(state, settings) if now < end), default=0.0)


def speed_up(state: State, settings: Settings, now: float) -> list[float]:
    """Change the gap by the steps down that are due; return the gap after each.

    It makes no difference how often and when somebody asks: each step is judged at the time at which it was due.
    """
    taken: list[float] = []
    if state.human or state.quiet_since is None:
        return taken
    while now >= state.quiet_since + settings.step_after:
        smaller = min(state.gap_s, max(settings.floor, STEP_DOWN * state.gap_s))
        passed = max(1, (now - state.quiet_since) // settings.step_after)
        # steps up to the first one that no memory forbids; one that is not taken is not made up for later
        end = max((end for gap_s, end in remembered(state, settings) if gap_s >= smaller), default=state.quiet_since)
        allowed = max(1, -((state.quiet_since - end) // settings.step_after)) if smaller < state.gap_s else math.inf
        state.quiet_since = min(now, state.quiet_since + min(allowed, passed) * settings.step_after)
        if allowed > passed or allowed == math.inf:
            break
        state.gap_s, state.opened_at = smaller, now
        taken.append(smaller)
    return taken


def obstacles(state: State, settings: Settings) -> list[tuple[float, str]]:
    """Return what the next slot of all lanes waits for: (end, reason) of the gap, the pause and each window."""
    found = [(after(state.last_call_at, state.gap_s), 'gap')] if state.last_call_at is not None else []
    if state.pause:
        found.append((state.pause['until'], 'pause'))
    calls_at = state.calls_at
    for requests, seconds, sentence in settings.limit.windows:
        if len(calls_at) >= requests:
            found.append((after(calls_at[-requests], seconds), sentence))
    return found


def record_call(state: State, settings: Settings, now: float) -> None:
    """Change the state for a call made now. Windows count only calls that were made under a limit."""
    state.last_call_at = now
    state.last_call_gap_s = state.gap_s
    if settings.limit.windows:
        state.calls_at.append(now)


def forget_calls(state: State, settings: Settings, now: float) -> None:
    """Change the list of calls: none that no window needs any more."""
    windows = settings.limit.windows
    while windows and state.calls_at and all(after(state.calls_at[0], seconds) <= now for _, seconds, _ in windows):
        del state.calls_at[0]


def requests_eta(state: State, settings: Settings, now: float, requests: int) -> float:
    """Return the seconds until that many further slots have been given, by the rules that `ask` goes by.

    Changes the state: it makes the calls.
    """
    moment = now
    at_once = (now, '')
    for _ in range(requests):
        moment = max([at_once, *obstacles(state, settings)])[0]
        record_call(state, settings, moment)
    return moment - now


def refusal(state: State, settings: Settings, now: float, wall: float, account: str | None) -> Paused | None:
    """Return why nobody, or nobody with this account, may wait now; None when waiting makes sense."""
    if state.human:
        return Paused(PARKED, state.human['what'], 'parked until a person clears it: %s%s' % (
            one_line(state.human['what']), ' (%s)' % one_line(state.human['url']) if state.human['url'] else ''))
    if account is not None and account in state.expired:
        entry = state.expired[account]
        text = 'account %s is signed out until its session file %s changes: %s' % (
            one_line(account), one_line(entry['session']), one_line(entry['why']))
        return Paused(PARKED, text, text)
    for until, obstacle in sorted(obstacles(state, settings), key=lambda found: (found[1] != 'pause', -found[0])):
        left = seconds_left(until, now)
        if obstacle != 'gap' and left > settings.max_wait:
            why = state.pause['why'] if state.pause and obstacle == 'pause' else obstacle
            return Paused(left, why, 'paused for %d s (until %s): %s' % (whole(left), utc(wall + left), one_line(why)))
    return None


def line_up(state: State, share: int) -> list[Waiter]:
    """Return the waiting lanes in the order in which they will be served."""
    priority = [waiter for waiter in state.queue if waiter['priority']]
    ordinary = [waiter for waiter in state.queue if not waiter['priority']]
    line: list[Waiter] = []
    run = state.priority_run
    while priority and ordinary:
        if run >= share:
            line.append(ordinary.pop(0))
            run = 0
        else:
            line.append(priority.pop(0))
            run += 1
    return line + priority + ordinary


def free_at(state: State, settings: Settings, waiter: Waiter) -> tuple[float, str]:
    """Return from when on the next slot is free for this lane, were it the first in line, and what it waits for."""
    found = obstacles(state, settings)
    if state.opened_at is not None:
        found.append((state.opened_at, 'gap'))
    if state.claim and not waiter['priority'] and state.priority_run < settings.share:
        found.append((state.claim['until'], 'claim of a priority lane'))
    return max(found, default=(-math.inf, ''))


def queue_up(state: State, waiter: Waiter) -> None:
    """Change the queue: the lane stands in it, at the end if it is new, else at its old place."""
    if waiter['ticket'] is None:
        waiter['ticket'] = state.next_ticket
    state.next_ticket = max(state.next_ticket, waiter['ticket'] + 1)  # a new directory counts from 0 again
    if waiter not in state.queue:
        state.queue.append(dict(waiter))
        state.queue.sort(key=lambda other: other['ticket'])


def leave_queue(state: State, waiter: Waiter) -> None:
    """Change the queue: the lane gives its place up."""
    state.queue = [other for other in state.queue if other != waiter]


def waiting(state: State, settings: Settings, now: float) -> list[str]:
    """Return the lanes in the queue, in the order in which they will be served.

    Those who have let a free slot go by are no longer there.
    """
    line = line_up(state, settings.share)
    if not line or now >= free_at(state, settings, line[0])[0] + GRACE_S + LOOK_S:
        return []
    return [waiter['lane'] for waiter in line]


class Wait:
    """No slot yet: `look_at` is when to ask again, `left_s` how long it takes at the least, `why` what for."""

    def __init__(self, look_at: float, left_s: float, why: str) -> None:
        self.look_at, self.left_s, self.why = look_at, left_s, why


def ask(state: State, settings: Settings, now: float, wall: float, waiter: Waiter,
        account: str | None) -> Wait | Paused | None:
    """Decide what a lane gets: a slot (None; the state says so), a time to ask again, or a refusal.

    The first in line gets the slot as soon as it is free. Has the slot been free for GRACE_S and the first has not
    come, it was killed or stopped: whoever looks first takes the slot, and the queue is called anew. Those that
    are alive come back at their next look, with their old ticket.
    """
    refused = refusal(state, settings, now, wall, account)
    if refused:
        leave_queue(state, waiter)
        return refused
    queue_up(state, waiter)
    line = line_up(state, settings.share)
    place = line.index(waiter)
    due, why = free_at(state, settings, waiter)
    if place:
        first_due = free_at(state, settings, line[0])[0]
        due = max(due, first_due + GRACE_S)
    if now >= due:
        if place:
            state.queue = []
        leave_queue(state, waiter)
        grant(state, settings, now, waiter)
        return None
    if not place:
        return Wait(due, due - now, 'pause: ' + state.pause['why'] if state.pause and why == 'pause' else why)
    own_turn_at = max(first_due, now) + place * state.gap_s  # at the earliest: those before it take one slot each
    return Wait(min(due, own_turn_at), own_turn_at - now, '%d before it in the queue' % place)


def grant(state: State, settings: Settings, now: float, waiter: Waiter) -> None:
    """Change the state for a slot that is given to this lane now."""
    record_call(state, settings, now)
    forget_calls(state, settings, now)
    if state.quiet_since is None:
        state.quiet_since = now
    if waiter['priority']:
        state.priority_run += 1
        length_s = CLAIM_GAPS * state.gap_s
        state.claim = {'until': now + length_s, 'length_s': length_s}
    else:
        state.priority_run = 0


def too_late(state: State, seconds: float) -> bool:
    """Say whether a slot that was handed over so many seconds after its grant would come too close to the next."""
    return seconds > max(LATE_S, LATE_GAPS * state.gap_s)


class Vigil:
    """One wait-clear: since when it waits at which parking, and whether its reminder is behind it.

    `every` and `timeout` are seconds; `every` is None without a probe.
    """

    def __init__(self, every: float | None, timeout: float) -> None:
        self.every, self.timeout = every, timeout
        self.number: int | None = None
        self.since, self.reminded = 0.0, False

    def next_step(self, human: dict[str, Any] | None, now: float) -> tuple[str, float]:
        """Return what to do now ('end', 'give up', 'remind', 'probe', 'wait'), and how many seconds to wait.

        Changes the parking: it notes the probe and the reminder, which all wait-clear share.
        """
        if human is None:
            return 'end', 0.0
        if human['number'] != self.number:  # the first look, or somebody has cleared and there is a new parking
            self.number, self.since, self.reminded = human['number'], now, False
        self.since = min(self.since, now)  # the clock may have jumped back
        if now >= self.since + 2 * self.timeout:
            return 'give up', 0.0
        if now >= self.since + self.timeout and not self.reminded:
            self.reminded = True
            if human['reminded_at'] is None or now >= human['reminded_at'] + self.timeout:
                human['reminded_at'] = now
                return 'remind', 0.0
        ends = [self.since + (2 if self.reminded else 1) * self.timeout]
        if self.every is not None:
            if human['probe_at'] is None or now >= human['probe_at'] + self.every:
                human['probe_at'] = now
                return 'probe', 0.0
            ends.append(human['probe_at'] + self.every)
        return 'wait', min(LOOK_S, min(ends) - now)


# --- The directory --------------------------------------------------------------------------------------------------


def flush(fd: int) -> None:
    """Have a file's content on the disk itself; macOS needs more than fsync for that."""
    if hasattr(fcntl, 'F_FULLFSYNC'):
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError:  # a file system that does not know it
            pass
    os.fsync(fd)


def flush_directory(fd: int) -> None:
    """Have a renamed or new entry on the disk itself."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such call and need none
            raise


def take_flock(fd: int, path: str, deadline: float) -> None:
    """Take the exclusive flock on an open file; GateError when it is not to be had by `deadline` (monotonic)."""
    nap_s = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # flock, not lockf: it must exclude flock(1) in a script
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise GateError('the lock in %s was not to be had for %d s: a process that holds it hangs or is stopped'
                                % (one_line(path), LOCK_TIMEOUT_S)) from None
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, 0.02)


class Hold:
    """The gate directory while it is locked. Files are reached through its descriptor, so that all of one hold
    happens in one place.

    With may_write=False nothing is created, and `missing` says that there is no directory; without a lock file
    there is no writer to wait for.
    """

    def __init__(self, path: str, may_write: bool = True) -> None:
        self.path, self.may_write, self.missing = path, may_write, False
        self.directory = self.lock = -1
        self.vanished = 0

    def run(self, function: Callable[[Hold], Any]) -> Any:
        """Lock, call `function` with this hold, unlock; return what it returns. OSError inside becomes GateError.

        No context manager: a signal's exception may come between its entry and the block, and the lock would stay.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            removed = False
            # whoever presses Ctrl-Z must not stop all the others
            held_back = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
            try:
                if self._enter(deadline):
                    return function(self)
            except FileNotFoundError:  # what we use we have made: somebody removes the directory, go on in a new one
                removed = True
            except OSError as error:
                name = error.filename
                where = os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))) if name else self.path
                raise GateError('cannot use %s: %s' % (one_line(where), error.strerror or error)) from error
            finally:
                try:
                    try:
                        self._close()
                    finally:
                        self._close()  # a signal's exception may have cut the first one short
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
            if time.monotonic() > deadline:
                raise GateError('%s or its lock file is removed again and again' % one_line(self.path))
            if removed:
                time.sleep(0.01)  # not before the lock is free

    def _enter(self, deadline: float) -> bool:
        try:
            self.directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.missing = not self.may_write
            return self.missing or self._make_directory()
        try:
            self.lock = self._open('lock', os.O_RDWR if self.may_write else os.O_RDONLY)
        except FileNotFoundError:
            return not self.may_write or self._make_lock(deadline)
        except PermissionError:  # flock needs no write access on a local disk
            try:
                self.lock = self._open('lock', os.O_RDONLY)
            except PermissionError:
                if self.may_write:
                    raise
                return True
        take_flock(self.lock, self.path, deadline)
        try:
            same = (os.path.samestat(os.fstat(self.lock), os.stat('lock', dir_fd=self.directory))
                    and os.path.samestat(os.fstat(self.directory), os.stat(self.path)))
        except FileNotFoundError:
            same = False
        if same:  # whoever removes the lock file while we hold it lets the next process in, but not past this one
            self._lock_directory(deadline)
        return same

    def _make_directory(self) -> bool:
        try:
            os.makedirs(self.path, 0o700, exist_ok=True)
            parent = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:  # removed by somebody at the same moment, unless it happens again and again
            self.vanished += 1
            if self.vanished > 10:
                raise GateError('cannot make %s: %s' % (one_line(self.path), error.strerror)) from error
            raise
        except PermissionError:  # a parent that may be written but not read cannot be flushed
            if not os.path.isdir(self.path):
                raise
            return False
        try:
            flush_directory(parent)
        finally:
            os.close(parent)
        return False

    def _make_lock(self, deadline: float) -> bool:
        self._lock_directory(deadline)
        try:
            os.stat('lock', dir_fd=self.directory)
        except FileNotFoundError:
            self._replace('lock', b'')
        return False

    def _lock_directory(self, deadline: float) -> None:
        try:
            take_flock(self.directory, self.path, deadline)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOTSUP):  # a network file system without it
                raise

    def _close(self) -> None:
        for name in ('directory', 'lock'):
            fd = getattr(self, name)
            if fd >= 0:
                try:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a fork has left a copy of it
                except OSError:  # a disk's late complaint; what was done has been flushed before
                    pass
                setattr(self, name, -1)  # before the close: by the next try the number may be another thread's
                try:
                    os.close(fd)
                except OSError:
                    pass

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file."""
        # a FIFO must not hang us
        fd = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.directory)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, 'not a regular file', name)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _replace(self, name: str, data: bytes) -> None:
        """Put a file in place as a whole; on disk when this returns, power cut or not.

        It has the directory's group and its read and write bits, whatever the umask is.
        """
        temporary = name + '.tmp'  # one fixed name: a kill leaves at most this, and the next write removes it
        try:
            os.unlink(temporary, dir_fd=self.directory)
        except FileNotFoundError:
            pass
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                     dir_fd=self.directory)
        try:
            while data:
                data = data[os.write(fd, data):]
            directory, root = os.fstat(self.directory), os.geteuid() == 0
            try:  # root once must not lock the owner out
                if root or os.fstat(fd).st_gid != directory.st_gid:
                    os.fchown(fd, directory.st_uid if root else -1, directory.st_gid)
            except OSError:  # a group that we are not in, or a sandbox that does not know it
                pass
            os.fchmod(fd, directory.st_mode & 0o666)
            flush(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        flush_directory(self.directory)

    def read_state(self) -> str | None:
        """Return the text of state.json, None without one; DamagedState for what is no text file."""
        if self.missing:
            return None
        try:
            fd = self._open('state.json', os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ELOOP, errno.ENXIO):
                raise DamagedState('it is not a regular file') from None
            raise
        with open(fd, 'rb') as file:
            data = file.read(STATE_LIMIT + 1)
        if len(data) > STATE_LIMIT:
            raise DamagedState('it is too large')
        try:
            return data.decode('utf-8')
        except UnicodeDecodeError:
            raise DamagedState('it is not UTF-8') from None

    def write_state(self, text: str) -> None:
        """Replace state.json."""
        data = text.encode('utf-8')
        if len(data) > STATE_LIMIT:
            raise OSError(errno.EFBIG, 'too many waiting lanes or accounts', 'state.json')
        self._replace('state.json', data)

    def put_state_aside(self) -> None:
        """Keep a damaged state.json under another name; it stays in place until a new one replaces it."""
        aside, here = 'state.json.damaged', self.directory
        try:
            if stat.S_ISDIR(os.stat(aside, dir_fd=here, follow_symlinks=False).st_mode):
                os.rename(aside, '%s.%d' % (aside, time.time_ns()), src_dir_fd=here, dst_dir_fd=here)
            else:
                os.unlink(aside, dir_fd=here)
        except FileNotFoundError:
            pass
        try:
            os.link('state.json', aside, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
        except OSError:  # a directory in its place, or a file system without links
            os.rename('state.json', aside, src_dir_fd=here, dst_dir_fd=here)

    def append(self, lines: Iterable[str]) -> None:
        """Add lines to calls.log, each by one write; half a line that a kill left there stays on its own."""
        lines = list(lines)
        if not lines:
            return
        try:
            fd = self._open('calls.log', os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            self._replace('calls.log', b'')
            fd = self._open('calls.log', os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b'\n'
            for line in lines:
                data = (b'\n' if torn else b'') + to_bytes(line) + b'\n'
                if os.write(fd, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'calls.log')
                torn = False
        finally:
            os.close(fd)

    def tail(self, count: int) -> list[str]:
        """Return the last lines of calls.log, safe for a terminal; the cost does not depend on its length."""
        if self.missing:
            return []
        try:
            fd = self._open('calls.log', os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            size = os.fstat(fd).st_size
            data = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        finally:
            os.close(fd)
        lines = data.split(b'\n')[1 if size > TAIL_BYTES else 0:-1]  # neither begun before nor cut off by a kill
        found: list[str] = []
        while lines and len(found) < count:
            text = lines.pop().replace(b'\0', b'').decode('utf-8', 'backslashreplace')  # NULs are left by a power cut
            if text:
                found.append(one_line(text, TAIL_BYTES))
        return found[::-1]


# --- The clock ------------------------------------------------------------------------------------------------------


def read_boot_id() -> str:
    """Return a name of this boot of the machine, '' where there is none."""
    if sys.platform == 'darwin':
        import ctypes
        import ctypes.util
        buffer = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(buffer))
        library = ctypes.CDLL(ctypes.util.find_library('c'))
        failed = library.sysctlbyname(b'kern.bootsessionuuid', buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
        return '' if failed else buffer.value.decode('ascii', 'replace')
    try:
        with open('/proc/sys/kernel/random/boot_id', encoding='utf-8') as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ''


def read_since_boot() -> float:
    """Return the seconds since boot, those spent asleep included."""
    # plain monotonic stops while a Mac sleeps, and on Linux as well
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW if sys.platform == 'darwin' else time.CLOCK_BOOTTIME)


class SteadyClock:
    """Unix time that nobody sets: the wall clock is read once per boot, from then on the time since boot counts.

    The state carries what ties the two (`boot`), so that all processes have the same time. Without a boot id it is
    the wall clock. `wall` is for people (log lines and messages), and for the next boot: it begins with what the
    wall clock says, which somebody may have set in the meantime.
    """

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] = read_since_boot,
                 boot_id: Callable[[], str] = read_boot_id) -> None:
        self.wall, self._since_boot, self._boot_id = wall, since_boot, boot_id
        self._id: str | None = None

    def read(self, boot: dict[str, Any] | None) -> tuple[float, dict[str, Any] | None, float]:
        """Return the time, what the state has to carry for it, and by how much its times are to be put forward."""
        if self._id is None:
            self._id = self._boot_id()
        wall = self.wall()
        if not self._id:
            return wall, None, 0.0
        elapsed = self._since_boot()
        if boot is None or boot['id'] != self._id:
            # forward only: a wall clock that was wrong for a while must not end a pause
            forward_s = max(0.0, boot['wall_ahead_s']) if boot else 0.0
            return wall, {'id': self._id, 'offset_s': wall - elapsed, 'wall_ahead_s': 0.0}, forward_s
        now = elapsed + boot['offset_s']
        if abs(wall - now - boot['wall_ahead_s']) > 1:  # set, not just read a moment later
            boot = {**boot, 'wall_ahead_s': wall - now}
        return now, boot, 0.0


class GivenClock:
    """A clock that the caller brought, used as it is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.wall = clock

    def read(self, boot: dict[str, Any] | None) -> tuple[float, dict[str, Any] | None, float]:
        return self.wall(), boot, 0.0


# --- The gate -------------------------------------------------------------------------------------------------------


class View:
    """What a verb sees in one hold of the lock: the state and the time, and the log lines that it wants written.

    Lines of what opens the gate go into `opening` and are written before the state, all others into `closing` and
    are written after it: if only one of the two can be written, the gate is left closed.
    """

    def __init__(self, state: State, now: float, wall: float) -> None:
        self.state, self.now, self.wall = state, now, wall
        self.opening: list[str] = []
        self.closing: list[str] = []


def path_text(path: object, field: str) -> str:
    """Return a path as text; BadSetting for what cannot be one."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        text = ''
    if not text.strip():
        raise BadSetting(field, 'must be a path, not %r' % (path,))
    return text


def expand(path: str) -> str:
    """Return an absolute path with `~` expanded; ValueError where there is no home directory."""
    if path == '~' or path.startswith('~/'):
        home = os.environ.get('HOME')
        if not home:
            import pwd
            try:
                home = pwd.getpwuid(os.getuid()).pw_dir
            except KeyError:
                raise ValueError('there is no home directory (HOME is not set): name the path in full, not %s'
                                 % one_line(path)) from None
        path = home + path[1:]
    elif path.startswith('~'):
        path = os.path.expanduser(path)
        if path.startswith('~'):
            raise ValueError('there is no such user as in %s' % one_line(path))
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise ValueError('the current directory is gone (%s): name the path in full' % error.strerror) from None


def file_mtime_ns(path: str) -> int | None:
    """Return a file's modification time, None where it cannot be had."""
    try:
        return os.stat(to_bytes(path)).st_mtime_ns
    except (OSError, ValueError):
        return None


class Gate:
    """The one pace of all lanes that use the same directory.

    `directory` is a str or a path, `~` is expanded. SETTINGS says what the keywords mean; times are in seconds, None
    is the default. `clock` and `sleep` are for tests. Raises ValueError for a setting that cannot be used. A Gate
    holds no file between calls: threads may share it, and children after a fork.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, start: float | None = None,
                 floor: float | None = None, ceil: float | None = None, step_after: float | None = None,
                 pause: float | None = None, remember: float | None = None, max_wait: float | None = None,
                 priority: str | Iterable[str] | None = None, share: int | None = None,
                 per_hour: int | None = None, burst: int | None = None, cooldown: float | None = None,
                 clock: Callable[[], float] | None = None, sleep: Callable[[float], object] = time.sleep) -> None:
        self.settings = Settings({
            'start': start, 'floor': floor, 'ceil': ceil, 'step_after': step_after, 'pause': pause,
            'remember': remember, 'max_wait': max_wait, 'priority': priority, 'share': share, 'per_hour': per_hour,
            'burst': burst, 'cooldown': cooldown})
        path = path_text('~/.cache/gwt-gate' if directory is None else directory, 'directory')
        if '\0' in path:
            raise BadSetting('directory', 'must be a path, not %r' % path)
        self.directory = expand(path)
        self.site = os.path.basename(self.directory)
        self._clock = SteadyClock() if clock is None else GivenClock(clock)
        self._sleep = sleep

    @classmethod
    def from_env(cls, directory: str | os.PathLike[str] | None = None, *, profile: str | None = None,
                 profiles: str | None = None, **settings: Any) -> Gate:
        """Make a Gate whose settings, where none is given, come from the GWT_GATE_ variables.

        Numbers may be given as text, as the variables have them. A profile's limits are used where nothing else sets
        them. Raises ValueError as Gate and load_profile do, naming the variable.
        """
        labels = {'directory': 'GWT_GATE_DIR'} if directory is None else {}

        def variable(name: str) -> str | None:
            return os.environ.get('GWT_GATE_' + name) or None  # an empty variable counts as unset

        for name in SETTINGS:
            if settings.get(name) is None:
                settings[name] = variable(name.upper())
                if name == 'priority' and settings[name]:
                    settings[name] = from_system(settings[name])
                labels[name] = 'GWT_GATE_' + name.upper()
            if name != 'priority' and isinstance(settings[name], str):
                try:
                    settings[name] = parse_number(settings[name])
                except ValueError:
                    raise BadSetting(name, 'must be a number, not %r' % one_line(settings[name], 40),
                                     labels.get(name, '')) from None
        profile = profile or variable('PROFILE')
        if profiles and not profile:
            raise BadSetting('profiles', 'limits nothing without a profile, the host whose row counts')
        if profile:
            for name, value in load_profile(profile, profiles or variable('PROFILES')).items():
                if settings[name] is None:
                    settings[name] = value
        try:
            return cls(directory if directory is not None else variable('DIR'), **settings)
        except BadSetting as error:
            raise BadSetting(error.field, error.problem, labels.get(error.field, error.label)) from None

    def _change(self, decide: Callable[[View], Any], carried: str | None = None, mend: bool = False) -> Any:
        """Lock, read, let `decide` change the state, write, log, unlock: in one hold. Return what `decide` returns.

        `carried` is the state that counts where the directory is gone; with `mend` a damaged state is put aside.
        """
        return Hold(self.directory).run(lambda hold: self._change_held(hold, decide, carried, mend))

    def _change_held(self, hold: Hold, decide: Callable[[View], Any], carried: str | None, mend: bool) -> Any:
        damaged = False
        before: str | None = None
        try:
            before = hold.read_state()
            state = self._state_from(carried if before is None else before)
        except DamagedState as damage:
            if not mend:
                raise self._explained(damage) from None
            damaged = True
            state = State(self.settings.ceil)
        view = self._view(state)
        if damaged:
            state.last_call_at = view.now  # nobody knows when the last one was
        result = decide(view)
        stamp = utc(view.wall)
        hold.append('%s %s' % (stamp, line) for line in view.opening)
        text = state.to_json()
        if text != before:
            if damaged:
                hold.put_state_aside()
            hold.write_state(text)
        hold.append('%s %s' % (stamp, line) for line in view.closing)
        return result

    def _state_from(self, text: str | None) -> State:
        return State(self.settings.start) if text is None else State.from_json(text, self.settings.start)

    def _explained(self, damage: DamagedState) -> GateError:
        return GateError('%s/state.json is damaged (%s), so nobody gets a slot: `gwt-gate clear REASON` puts it aside '
                         'and starts again at the largest gap' % (one_line(self.directory), damage))

    def _view(self, state: State) -> View:
        now, state.boot, forward_s = self._clock.read(state.boot)
        if forward_s:
            change_times(state, lambda moment, ahead_s: moment + forward_s)
        settle(state, now)
        return View(state, now, self._clock.wall())

    def _look(self, lines: int = 0) -> tuple[View, list[str]]:
        """Return the state as it is now, and so many log lines, without writing or creating anything."""
        def look(hold: Hold) -> tuple[View, list[str]]:
            try:
                view = self._view(self._state_from(hold.read_state()))
            except DamagedState as damage:
                raise self._explained(damage) from None
            return view, hold.tail(lines) if lines else []

        found: tuple[View, list[str]] = Hold(self.directory, may_write=False).run(look)
        return found

    def _log(self, line: str) -> None:
        """Write one log line and nothing else."""
        Hold(self.directory).run(lambda hold: hold.append(['%s %s' % (utc(self._clock.wall()), line)]))

    def wait(self, lane: str, account: str | None = None, *,
             watch: Callable[[float, str], object] | None = None) -> float:
        """Return when this lane may send one request; the value is the seconds waited.

        Raises Paused at once while waiting makes no sense: parked for a person, `account` signed out, a pause or a
        published limit with more than `max_wait` seconds to go. Raises GateError for an unusable directory,
        ValueError for an empty lane. `watch(seconds_left, reason)` is called before each sleep, about once a second.
        """
        waiter: Waiter = {'ticket': None, 'lane': required(lane, 'the lane'),
                          'priority': lane in self.settings.priority}
        if account is not None:
            account = required(account, 'the account')
        started = carried = None
        try:
            while True:
                view, answer = self._change(lambda view: (view, self._ask(view, waiter, account)), carried)
                started = view.now if started is None else started
                carried = view.state.to_json()
                if isinstance(answer, Paused):
                    waiter['ticket'] = None
                    raise answer
                now = self._clock.read(view.state.boot)[0]
                if answer is None:
                    waiter['ticket'] = None
                    if not too_late(view.state, now - view.now):
                        return float(max(0.0, now - started))
                    continue  # this process was stopped in between
                if watch:
                    watch(max(0.0, answer.left_s), answer.why)
                if answer.look_at > now:
                    self._sleep(min(LOOK_S, answer.look_at - now))
        except BaseException as error:
            if waiter['ticket'] is not None and not isinstance(error, GateError):  # or it would fail once more
                self._give_up(waiter)
            raise

    def _ask(self, view: View, waiter: Waiter, account: str | None) -> Wait | Paused | None:
        state = view.state
        entry = state.expired.get(account) if account is not None else None
        if account is not None and entry and renew(state, account, file_mtime_ns(entry['session'])):
            view.opening.append('AUTH %s session renewed' % one_line(account))
        self._speed_up(view)
        answer = ask(state, self.settings, view.now, view.wall, waiter, account)
        if answer is None:
            view.closing.append('CALL %s%s gap=%s' % (
                one_line(waiter['lane']), '' if account is None else ' account=' + one_line(account),
                gap_text(state.gap_s)))
        return answer

    def _speed_up(self, view: View) -> None:
        for gap_s in speed_up(view.state, self.settings, view.now):
            view.opening.append('PACE gap=%s' % gap_text(gap_s))

    def _give_up(self, waiter: Waiter) -> None:
        try:
            self._change(lambda view: leave_queue(view.state, waiter))
        except GateError:  # the others step over the place after a second; what ends this wait is to be told
            pass

    def hit(self, lane: str, why: object, retry_after: str | float | None = None) -> None:
        """Report that the site said "too fast": the gap triples, all lanes pause.

        `retry_after` is the value of a Retry-After header (RFC 9110, 10.2.3: seconds or a date); the pause is the
        longer of it and `pause`, at most 30 days. A value that cannot be used is said on stderr; the hit counts.
        """
        lane, text = required(lane, 'the lane'), reason(why)
        asked = '' if retry_after is None else reason(retry_after)
        asked_s = parse_retry_after(asked, self._clock.wall())
        length_s = max(self.settings.pause, asked_s or 0.0)

        def decide(view: View) -> None:
            slow_down(view.state, self.settings, view.now, utc(view.wall), text)
            paused = prolong(view.state, view.now, length_s, text)
            view.closing.append('HIT %s %s%s%s %s gap=%s' % (
                one_line(lane), one_line(text), ' retry-after=' + one_line(asked, 60) if asked else '',
                ' (not usable)' if asked and asked_s is None else '', pause_text(paused, length_s),
                gap_text(view.state.gap_s)))

        self._change(decide)
        if asked and asked_s is None:
            say('Retry-After "%s" is no number of seconds above 0 and no HTTP date to come: the pause is the '
                "gate's own, %s s" % (one_line(asked, 60), brief(self.settings.pause)))

    def denied(self, lane: str, why: object) -> None:
        """Log that the site refused one record (a 403 that is no block page). Nothing else changes."""
        self._log('DENIED %s %s' % (one_line(required(lane, 'the lane')), one_line(reason(why))))

    def dead(self, lane: str, why: object) -> None:
        """Report that the session has ended (a 401): all lanes pause for `pause` seconds, the gap stays."""
        lane, text, length_s = required(lane, 'the lane'), reason(why), self.settings.pause

        def decide(view: View) -> None:
            paused = prolong(view.state, view.now, length_s, text)
            view.closing.append('DEAD %s %s %s' % (one_line(lane), one_line(text), pause_text(paused, length_s)))

        self._change(decide)

    def block(self, hours: float, why: object) -> None:
        """Report that the account or the address is blocked: a pause of `hours`, at most 366 days; the gap stays.

        Raises ValueError for hours that are not a number above 0. The time is no quiet time.
        """
        length_s, text = check_number('hours', hours) * HOUR_S, reason(why)
        if length_s > LONGEST_BLOCK_S:
            raise BadSetting('hours', 'must be at most %s (366 days), not %s' % (
                brief(LONGEST_BLOCK_S / HOUR_S), brief(hours)))

        def decide(view: View) -> None:
            self._speed_up(view)  # the quiet time before it counts
            paused = block(view.state, view.now, length_s, text)
            view.closing.append('BLOCK %s %s' % (one_line(text), pause_text(paused, length_s)))

        self._change(decide)

    def clear(self, reason: str) -> None:
        """End the pause or block, the parking and every signed-out account now; the gap stays.

        A damaged state.json is put aside, and the gate starts again at `ceil`. Raises ValueError without a reason.
        """
        text = required(reason, 'the reason')

        def decide(view: View) -> None:
            state = view.state
            ended = ['pause: ' + one_line(state.pause['why'])] if state.pause else []
            ended += ['parking: ' + one_line(state.human['what'])] if state.human else []
            ended += ['accounts: ' + one_line(', '.join(state.expired))] if state.expired else []
            view.opening.append('CLEAR %s (%s)' % (one_line(text), '; '.join(ended) or 'nothing to clear'))
            reopen(state, view.now)

        self._change(decide, mend=True)

    def status(self) -> dict[str, Any]:
        """Return gap, pause, reason and last hit, and what else there is to say. Writes and creates nothing."""
        return self.status_and_log()[0]

    def status_and_log(self) -> tuple[dict[str, Any], list[str]]:
        """Return what `status` does, and the last ten lines of calls.log as they were at the same moment."""
        view, lines = self._look(10)
        state, now = view.state, view.now
        speed_up(state, self.settings, now)
        report: dict[str, Any] = {
            'gap_s': round(state.gap_s, 6), 'paused_for_s': 0, 'why': '', 'last_hit': state.last_hit}
        if state.pause:
            report.update(paused_for_s=whole(state.pause['until'] - now), why=state.pause['why'])
        if state.human:
            report.update(paused_for_s=None, why=report['why'] or state.human['what'],
                          human={name: state.human[name] for name in ('lane', 'what', 'url', 'when')})
        if state.expired:
            report['expired'] = {account: {name: entry[name] for name in ('lane', 'why', 'session', 'when')}
                                 for account, entry in state.expired.items()}
        lanes = waiting(state, self.settings, now)
        if lanes:
            report['waiting'] = lanes
        refused_gap_s = not_below(state, self.settings, now)
        if refused_gap_s:
            report['not_below_s'] = round(refused_gap_s, 6)
        return report, lines

    def eta(self, n: int) -> dict[str, Any]:
        """Return the whole seconds until the n-th further slot, None while parked. Writes and creates nothing.

        Counts the current gap, the pause that is running and the site's limits, not the queue. Raises ValueError for
        an n that is not a whole number from 0 to 1000000.
        """
        if type(n) is not int or not 0 <= n <= 1000000:
            raise ValueError('the number of requests must be a whole number from 0 to 1000000, not %s'
                             % one_line(str(n), 40))
        view, _ = self._look()
        parked = view.state.human is not None
        speed_up(view.state, self.settings, view.now)
        left = None if parked else whole(requests_eta(view.state, self.settings, view.now, n))
        return {'requests': n, 'eta_s': left, 'parked': parked}

    def human(self, lane: str, what: object, url: str = '', notify: str | None = None) -> bool | None:
        """Park every lane until a person has solved what the site asks for, and tell a person by the notice.

        Triples the gap as a hit does. `notify` is the command template (default: GWT_GATE_NOTIFY). Returns True when
        a notice went out or the gate was parked already, False when the notice failed, None when there is none to
        run. Raises ValueError for a bad template, and then nothing has been parked. For a captcha or a login page,
        not for "too fast": only `clear` or a passing probe ends it.
        """
        lane, text, url = required(lane, 'the lane'), reason(what), str(url or '')[:TEXT_LIMIT]
        template = notice_template(notify)

        def decide(view: View) -> bool:
            new = park(view.state, self.settings, view.now, utc(view.wall), lane, text, url)
            view.closing.append('HUMAN %s %s%s %s' % (
                one_line(lane), one_line(text), ' url=' + one_line(url) if url else '',
                'gap=' + gap_text(view.state.gap_s) if new else 'parked already'))
            return new

        if not self._change(decide):
            return True
        return self._notify(template, lane, text, url)

    def _notify(self, template: list[str], lane: str, what: str, url: str,
                wanted: Callable[[], bool] = lambda: True) -> bool | None:
        """Run the notice, outside the lock, and log how it ended; None and a line on stderr where there is none."""
        if not template:
            say('parked, and nobody was told, since no notice is configured (--notify): ' + one_line(what))
            return None
        code = run_notice(fill(template, site=self.site, lane=lane, url=url, what=what[:TEXT_LIMIT]), wanted)
        self._log('NOTIFY %s exit=%s' % (one_line(lane), code))
        if code in ('0', 'running'):
            return True
        say('parked, but the notice failed (exit=%s), so nobody was told: %s' % (code, one_line(what)))
        return False

    def wait_clear(self, probe: str | None = None, every: float = 60, timeout: float = 3600,
                   notify: str | None = None) -> bool:
        """Return True once the gate is not parked any more, False when it still is after twice `timeout` seconds.

        `probe` is a command that exits 0 when the site answers again; all callers together run it every `every`
        seconds, and it takes no slot. After `timeout` the notice runs once more. Without a probe it waits for
        `clear`. Raises GateError when the probe cannot be run, ValueError for a bad template or number.
        """
        every, timeout = check_number('every', every), check_number('timeout', timeout)
        words = [] if probe is None else probe_words(probe)
        template = notice_template(notify)
        vigil = Vigil(every if words else None, timeout)

        def parked_still() -> bool:
            human = self._look()[0].state.human
            return human is not None and human['number'] == vigil.number

        while True:
            human, (step, seconds) = self._change(lambda view: (
                view.state.human, vigil.next_step(view.state.human, view.now)))
            if step in ('end', 'give up'):
                return bool(step == 'end')
            if step == 'wait':
                self._sleep(seconds)
            elif step == 'remind':
                self._notify(template, human['lane'], 'still waiting: ' + human['what'], human['url'], parked_still)
            elif self._probe(words, max(1.0, every), parked_still):
                self._change(lambda view: self._probe_passed(view, vigil.number))

    def _probe(self, words: list[str], limit_s: float, wanted: Callable[[], bool]) -> bool:
        def give_turn_back(view: View) -> None:
            if view.state.human:
                view.state.human['probe_at'] = None

        try:
            return run_probe(words, limit_s, wanted)
        except GateError:  # the next one, with a probe that can be run, need not wait
            self._change(give_turn_back)
            raise

    def _probe_passed(self, view: View, number: int | None) -> None:
        human = view.state.human
        if human and human['number'] == number:  # else somebody was faster, or there is a new parking by now
            view.opening.append('CLEAR probe passed (parking: %s)' % one_line(human['what']))
            end_parking(view.state, view.now)

    def auth_expired(self, lane: str, why: object = '', account: str | None = None,
                     session: str | os.PathLike[str] | None = None) -> None:
        """Report a 401 on one account: only lanes that call `wait` with it stop; gap and pause are left alone.

        `session` is the file that holds the login; the first `wait` after its modification time has changed lets
        the account go on. Raises ValueError without account or session. Where the gate is one account: `dead`.
        """
        lane, name, text = required(lane, 'the lane'), required(account, 'the account'), reason(why)
        path = from_system(expand(path_text(session, 'session')))

        def decide(view: View) -> None:
            view.state.expired[name] = {
                'lane': lane, 'why': text, 'session': path, 'when': utc(view.wall), 'mtime_ns': file_mtime_ns(path)}
            view.closing.append('AUTH-EXPIRED %s %s account=%s session=%s' % (
                one_line(lane), one_line(text), one_line(name), one_line(path)))

        self._change(decide)


# --- Retry-After ----------------------------------------------------------------------------------------------------


def parse_retry_after(text: str, wall: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, at most 30 days; None for what is not usable.

    RFC 9110, 10.2.3 and 5.6.7: ASCII digits, or a date in one of three forms, always UTC. A decimal fraction, which
    some sites send, is rounded up. Zero, a time that is past and anything else are not usable.
    """
    text = text.strip(' \t')
    if re.fullmatch(r'[0-9]+(\.[0-9]+)?', text):
        seconds = float(text)  # any number of digits: the largest become infinite, and are cut below
    else:
        months = '(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)'
        clock = r'[0-9]{2}:[0-9]{2}:[0-9]{2}'
        year = '(?!00)[0-9]{4}'  # parsedate takes 0050 for 2050
        forms = (r'[A-Z][a-z]{2}, [0-9]{2} %s %s %s GMT' % (months, year, clock),  # IMF-fixdate
                 r'[A-Z][a-z]{5,8}, [0-9]{2}-%s-[0-9]{2} %s GMT' % (months, clock),  # RFC 850
                 r'[A-Z][a-z]{2} %s [0-9 ][0-9] %s %s' % (months, clock, year))  # asctime
        if not any(re.fullmatch(form, text) for form in forms):
            return None
        from calendar import timegm
        from datetime import datetime
        from email.utils import parsedate
        parsed = parsedate(text)
        try:
            date = datetime(*parsed[:6]) if parsed else None
        except ValueError:
            date = None
        if date is None:
            return None
        seconds = timegm(date.timetuple()) - wall
    if seconds <= 0:
        return None
    return float(math.ceil(min(seconds, LONGEST_RETRY_AFTER_S)))


# --- Notices and probes: other programs -----------------------------------------------------------------------------

FIELDS = ('site', 'lane', 'url', 'what')
LEFT_ALONE: list[subprocess.Popen[bytes]] = []  # notices that were still running; without a reference Python complains


def split_command(command: object) -> list[str]:
    """Split a command into words as a shell would, and do no more of what a shell does. Raises ValueError."""
    import shlex
    if not isinstance(command, str):
        raise ValueError('a command must be text, not %r' % (command,))
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError('the command %s cannot be used: %s' % (one_line(command), error)) from None
    if not words:
        raise ValueError('the command is empty')
    return words


def expand_program(words: list[str]) -> list[str]:
    """Expand `~` at the beginning of the program, since there is no shell to do it."""
    return [os.path.expanduser(words[0]), *words[1:]]


def notice_template(notify: str | None) -> list[str]:
    """Return the words of the notice, from the variable where none is given; none at all without one.

    The words come first, so that nothing that is filled in later can become a second word. Raises ValueError for
    what `fill` must not meet: other fields than ours, attributes, indexes, formats, single braces.
    """
    from string import Formatter
    notify = notify or from_system(os.environ.get('GWT_GATE_NOTIFY', ''))
    words = split_command(notify) if notify else []
    try:
        parts = [part for word in words for part in Formatter().parse(word)]
    except ValueError as error:
        raise ValueError('the command %s cannot be used: %s' % (one_line(notify), error)) from None
    for _, field, spec, conversion in parts:
        if field is not None and (field not in FIELDS or spec or conversion):
            raise ValueError('the command %s may hold the fields {site}, {lane}, {url} and {what}, not {%s}; '
                             'literal braces are doubled' % (one_line(notify), one_line(field)))
    return words


def fill(template: list[str], **values: str) -> list[str]:
    """Fill each word of a checked template by itself."""
    return expand_program([word.format(**values).replace('\0', '\\x00') for word in template])


def probe_words(probe: str) -> list[str]:
    """Return the words of a probe, in which braces mean nothing; GateError for one that does not exist."""
    import shutil
    words = expand_program(split_command(probe))
    if shutil.which(words[0]) is None:
        raise GateError('the probe cannot be run, no such program: %s' % one_line(words[0]))
    return words


def start(words: list[str]) -> subprocess.Popen[bytes]:
    """Start a program without shell, input, pipe or terminal, in a process group of its own; OSError if it cannot."""
    # what stays behind in its background must not keep the caller's output open
    import subprocess
    return subprocess.Popen([to_bytes(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, start_new_session=True)


def exit_code(process: subprocess.Popen[bytes], limit_s: float, wanted: Callable[[], bool]) -> str:
    """Return how a program ends, as text; 'running' if it does not within `limit_s` real seconds or is not `wanted`
    any more, 'unknown' where somebody else fetched its end.
    """
    now = time.monotonic()
    deadline, look_at, nap_s = now + limit_s, now, 0.001
    while True:
        try:  # Popen.wait would call it a success when the end is lost, as it is where SIGCHLD is ignored
            ended, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            process.returncode = -1
            return 'unknown'
        if ended:
            process.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            return str(process.returncode)
        now = time.monotonic()
        if now >= deadline:
            return 'running'
        if now >= look_at:
            if not wanted():
                return 'running'
            look_at = now + LOOK_S
        time.sleep(min(nap_s, deadline - now))
        nap_s = min(2 * nap_s, 0.05)


def run_notice(words: list[str], wanted: Callable[[], bool]) -> str:
    """Run a notice and return its exit code, 'missing' if it cannot be started, 'running' if it is left alone."""
    try:
        process = start(words)
    except (OSError, ValueError):  # ValueError: a program name with a NUL
        return 'missing'
    code = exit_code(process, NOTICE_TIMEOUT_S, wanted)
    if code == 'running':
        LEFT_ALONE.append(process)
    return code


def run_probe(words: list[str], limit_s: float, wanted: Callable[[], bool]) -> bool:
    """Run a probe and return whether it exits 0 within `limit_s` real seconds, and while it is still `wanted`.

    It is killed with its children otherwise. Raises GateError when it cannot be run (exit 126, 127: a shell's word).
    """
    try:
        process = start(words)
    except (OSError, ValueError) as error:
        raise GateError('the probe cannot be run: %s' % error) from None
    try:
        code = exit_code(process, limit_s, wanted)
    finally:
        if process.returncode is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    if code in ('126', '127'):
        raise GateError('the probe cannot be run (exit %s): %s' % (code, one_line(' '.join(words))))
    return code == '0'


# --- Walls ----------------------------------------------------------------------------------------------------------
#
# A row of WALLS is a name and the marks that must all hold, each a kind of evidence and a pattern. The first row that
# holds names the wall, so the owner of a wall stands above the widgets that it borrows. Answer, URL and headers are
# compared in lower case. To add a wall, add a row; kinds of evidence are
#
#   header      'name: value' of the last header block in front of the body         whole line
#   url         where the answer came from, as '//host/path?query'                  whole line
#   title       a <title>, also one in <noscript>; not on a page as long as an article    whole line
#   element     'tag', 'tag#id', 'tag.class' (one line for each class), 'tag[name=v]', 'tag[type=v]',
#               'tag[data-translate=v]'                                             whole line
#   address     'tag //host/path?query' of what the page loads, frames, posts or refreshes to    whole line
#   link        '//host/path?query' of an <a>                                       whole line
#   json        'key: value' for each plain value of a JSON object that is the whole body        whole line
#   script      code in <script>, without comments and without strings that hold more than an address  any part
#   text        what a reader sees (its beginning)                                  any part
#   sole text   the same, with next to nothing beside the part that matches
#   text up to, scripts up to      the page has at most so many characters of text, so many <script> elements
#   no KIND     the kind has no such mark
#
# A mark must be something that only the wall has. The vendors' sensors, widgets, libraries and names are on millions
# of ordinary pages and prove nothing. Begin a pattern with plain characters where you can: it is found faster. In a
# line '[^?\n]*' is cheaper than '.*', and two '.*' in front of one another are slow on a page made to be slow.

# Cloudflare's numbers for "you are refused". Its other numbers (52x, 1016, 1027) are faults and limits of the site.
_REFUSED = '(?:100[5-9]|101[0235]|1020)'
_NEARLY_BARE = '300'  # characters: a heading, a sentence, a button
_SHORT = '1500'  # characters: a page that explains itself, and does nothing else
_AKAMAI = r'(?:reference ?#\d+\.[0-9a-f]+\.|errors\.edgesuite\.net/\d)'
_TURNSTILE = r'(?:script|iframe) //challenges\.cloudflare\.com/(?:turnstile/|cdn-cgi/challenge-platform/.*turnstile).*'
_GATE = '(?:human|robot|verif|captcha|security check)'
_FIELD = r'(?:textarea|select|input\[type=(?!hidden|submit|button|image)[^\n]*)'
_RECAPTCHA = r'script //(?:www\.google\.com|www\.recaptcha\.net|recaptcha\.net|www\.google\.cn)/recaptcha/'

WALLS: tuple[tuple[str, ...], ...] = (
    ('perfdrive', 'url', r'//(?:[\w-]+\.)+perfdrive\.com(?:[/?#].*)?'),
    ('perfdrive', 'title',
     r'(?:shieldsquare|radware bot manager) (?:captcha|block)|radware (?:(?:captcha|block) )?page'),
    ('perfdrive', 'address', r'[\w-]+ //captcha\.perfdrive\.com(?:/.*)?'),
    ('perfdrive', 'address', r'(?:meta|form|i?frame) //validate\.perfdrive\.com(?:[/?#].*)?'),
    ('perfdrive', 'script',
     r'location(?:\.\w+)?\s*[=(]\s*["\'](?:https?:)?//(?:validate|captcha)\.perfdrive\.com["\'/?]'),
    ('perfdrive', 'script', r'window\.ssjsinternal\s*=\s*\d'),
    ('perfdrive', 'text', r'\A.{0,80}we apologize for the inconvenience.{0,60}made us think that you are a bot',
     'text up to', _SHORT),

    ('imperva', 'address', r'iframe [^?\n]*/_incapsula_resource\?(?:.*&)?cwudnsai=.*'),
    ('imperva', 'sole text', r'(?:request unsuccessful\. )?incapsula incident id: ?\d+-\d+'),
    # The sensor of ordinary pages is the same script with ns= in its query, on a page that has other things to do.
    ('imperva', 'address', r'script [^?\n]*/_incapsula_resource\?swjiylwa=(?!.*&ns=).*',
     'text up to', '20', 'scripts up to', '1', 'no title', '.*'),
    ('imperva', 'script', 'onprotectioninitialized', 'script', 'reeseskipexpirationcheck|showblockpage'),
    ('imperva', 'title', r'pardon our interruption(?:\.\.\.|…)?'),
    ('imperva', 'element', r'[\w-]+(?:#|\[name=)distil(?:captcha|unblock)form\]?'),
    ('imperva', 'address', r'[\w-]+ //(?:cdn|unblock)\.distilnetworks\.com/.*', 'text up to', _SHORT),
    ('imperva', 'link', r'//(?:www\.)?incapsula\.com/why-am-i-seeing-this-page.*',
     'text', 'additional security check is required'),
    ('imperva', 'script', '___utmvc', 'text up to', '20'),

    ('cloudflare', 'header', 'cf-mitigated: challenge'),
    ('cloudflare', 'script', r'_cf_chl_opt(?:["\']\])?\s*=\s*(?:\{|\Z)'),
    ('cloudflare', 'script', r'/cdn-cgi/challenge-platform/(?:h/\w+/)?orchestrate/'),
    ('cloudflare', 'address', r'script [^?\n]*/cdn-cgi/challenge-platform/(?:h/\w+/)?orchestrate/.*'),
    # An ordinary form can have the token in its action, left over from a challenge that was passed.
    ('cloudflare', 'element', 'form#challenge-form', 'address', r'form (?:.*[?&]__cf_chl_|[^?\n]*/cdn-cgi/l/chk_).*'),
    ('cloudflare', 'element', r'input\[name=jschl[_-]vc\]'),
    ('cloudflare', 'element', r'[\w-]+\.cf-error-' + _REFUSED),
    ('cloudflare', 'element', r'h\d\[data-translate=(?:block|challenge)_headline\]'),
    ('cloudflare', 'title', r'.* used cloudflare to restrict access', 'text', r'\b' + _REFUSED + r'\b'),
    ('cloudflare', 'title', r'.* used cloudflare to restrict access', 'text up to', _NEARLY_BARE),
    ('cloudflare', 'title', r'attention required! \| cloudflare'),
    ('cloudflare', 'title', r'just a moment(?:\.\.\.|…)', 'element', r'[\w-]+#challenge-error-\w+'),
    ('cloudflare', 'title', r'just a moment(?:\.\.\.|…)', 'address', r'(?:script|link) [^?\n]*/cdn-cgi/(?!l/|apps/).*',
     'text up to', _SHORT),
    ('cloudflare', 'title', r'just a moment(?:\.\.\.|…)', 'text up to', '500'),
    ('cloudflare', 'element', r'[\w-]+#(?:challenge-error-text|trk_jschal_js|cf-challenge-running)',
     'text up to', _SHORT),
    ('cloudflare', 'text', r'\Aerror code: ' + _REFUSED + r'\Z', 'no title', '.*'),
    ('cloudflare', 'json', 'cloudflare_error: true', 'json', 'error_code: ' + _REFUSED),
    # Turnstile is a widget like any other, unless the page has nothing else to say and nothing to fill in.
    ('cloudflare', 'address', _TURNSTILE, 'text', _GATE, 'text up to', _NEARLY_BARE, 'no element', _FIELD),
    ('cloudflare', 'address', _TURNSTILE, 'title', f'.*{_GATE}.*', 'text up to', _NEARLY_BARE, 'no element', _FIELD),
    ('cloudflare', 'element', r'[\w-]+\.cf-turnstile', 'text', _GATE, 'text up to', _NEARLY_BARE, 'no element', _FIELD),
    ('cloudflare', 'element', r'[\w-]+\.cf-turnstile', 'title',
     'verifying connection.*|security check|just a moment.*'),

    ('anubis', 'element', 'script#anubis_challenge'),
    ('anubis', 'address', r'[\w-]+ [^?\n]*/\.within\.website/x/cmd/anubis/.*'),
    ('go-away', 'address', r'[\w-]+ [^?\n]*/\.well-known/\.git\.gammaspectra\.live/git/go-away/.*'),
    ('go-away', 'address', '(?:meta|form|script) .*__goaway_challenge.*'),
    ('datadome', 'address', r'script //(?:ct|i)\.captcha-delivery\.com(?:/.*)?', 'script', r'\bdd\s*=\s*\{'),
    ('datadome', 'address', r'script //(?:ct|i)\.captcha-delivery\.com(?:/.*)?', 'text up to', _NEARLY_BARE),
    ('datadome', 'script', r'var dd\s*=\s*\{[^{}]*["\']geo\.captcha-delivery\.com["\']'),
    ('datadome', 'address', r'i?frame //geo\.captcha-delivery\.com/.*'),
    ('datadome', 'url', r'//geo\.captcha-delivery\.com/.*'),
    ('datadome', 'json', r'url: https?://geo\.captcha-delivery\.com/.*'),
    ('akamai', 'title', 'access denied', 'text', _AKAMAI, 'text up to', _SHORT),
    ('akamai', 'text', r'\Aaccess denied .*' + _AKAMAI, 'text up to', _SHORT),
    ('akamai', 'script', r'/_sec/verify\?provider=interstitial', 'text up to', _NEARLY_BARE),
    ('akamai', 'address', 'meta .*[?&]bm-verify=.*', 'text up to', _NEARLY_BARE),
    ('perimeterx', 'element', r'[\w-]+#px-captcha', 'title',
     r'access to this page has been denied\.?|robot or human\?'),
    ('perimeterx', 'title', r'access to this page has been denied\.?', 'script', '_pxappid'),
    ('perimeterx', 'title', r'access to this page has been denied\.?', 'text', 'you are using automation tools'),
    # Some shops have the whole challenge on every page, out of sight.
    ('perimeterx', 'script', r'/captcha/captcha\.js\?a=c', 'text up to', _SHORT),
    ('perimeterx', 'address', r'script [^?\n]*/captcha/captcha\.js\?a=c.*', 'text up to', _SHORT),
    ('aws-waf', 'header', 'x-amzn-waf-action: (?:challenge|captcha)'),
    ('aws-waf', 'script', r'gokuprops\s*=', 'address', r'script //[\w.-]*\.awswaf\.com/.*'),
    ('aws-waf', 'script', r'gokuprops\s*=', 'text up to', _NEARLY_BARE),
    ('aws-waf', 'script', r'awswafintegration\.(?:gettoken|(?:check)?forcerefresh(?:token)?)\b',
     'element', r'[\w-]+#challenge-container'),
    ('sucuri', 'title', 'sucuri website firewall - access denied|access denied - sucuri website firewall'),
    ('sucuri', 'script', 'sucuri_cloudproxy_js', 'text up to', _NEARLY_BARE),
    ('siteground', 'address', r'(?:meta|form|i?frame|script) [^?\n]*/\.well-known/sgcaptcha/.*'),
    ('siteground', 'url', r'//[^/\n]+/\.well-known/sgcaptcha/.*'),
    ('ddos-guard', 'title', 'ddos-guard'),
    ('ddos-guard', 'address', r'[\w-]+ [^?\n]*/\.well-known/ddos-guard/(?:ddg-captcha-page|js-challenge)/.*'),
    ('f5', 'text', r'\Athe requested url was rejected\. please consult with your administrator\..{0,40}support id',
     'text up to', '500'),
    ('kasada', 'script', r'window\.kpsdk\s*=\s*\{', 'address', r'script [^?\n]*/ips\.js\?.*', 'text up to', '50'),
    ('fastly', 'address', r'[\w-]+ [^?\n]*/_fs-ch-.*', 'title', 'client challenge'),
    ('fastly', 'address', r'[\w-]+ [^?\n]*/_fs-ch-.*', 'text up to', _NEARLY_BARE),
    ('vercel', 'title', 'vercel security checkpoint'),
    ('vercel', 'header', 'x-vercel-mitigated: challenge'),

    ('hcaptcha', 'element', r'[\w-]+\.h-captcha'),
    ('hcaptcha', 'title', 'hcaptcha solve page'),
    ('hcaptcha', 'address', r'script //(?:[\w-]+\.)?hcaptcha\.com/1/api\.js.*', 'element', 'form',
     'text up to', _NEARLY_BARE),
    ('recaptcha', 'url', r'//(?:www|ipv[46])\.google\.[a-z]{2,3}(?:\.[a-z]{2})?/sorry(?:[/?#].*)?'),
    ('recaptcha', 'element', r'[\w-]+\.g-recaptcha'),
    ('recaptcha', 'address', r'iframe [^?\n]*/recaptcha/(?:api|enterprise)/fallback\?.*'),
    ('recaptcha', 'script', r'grecaptcha(?:\.enterprise)?\.render\s*\(', 'script', r'sitekey["\']?\s*:'),
    ('recaptcha', 'element', 'form#captcha-form', 'address', _RECAPTCHA + '.*'),
    ('recaptcha', 'title', 'recaptcha solve page'),
    # render=KEY is version 3, which counts points in the background and never asks anything.
    ('recaptcha', 'address', _RECAPTCHA + r'(?:api|enterprise)\.js(?!.*[?&]render=(?!explicit|onload)).*',
     'element', 'form', 'text up to', _NEARLY_BARE),
)

_WHOLE_LINE = ('header', 'url', 'title', 'element', 'address', 'link', 'json')
_ARTICLE = 4000  # characters of text: no wall says that much, but an article on a wall may have its title
_TEXT_KEPT = 8000  # characters
_VALUE_KEPT = 2000  # characters of an attribute
_TAG_KEPT = 256 * 1024  # characters
_HEADERS_KEPT = 64 * 1024  # bytes of a block
_BESIDE = 60  # characters that may stand beside a sole text


def challenge(body: str | bytes | bytearray | memoryview, url: str = '') -> str | None:
    """Name the bot wall in an answer, or return None.

    `body` may begin with response headers (`curl -i`) and may be gzip or UTF-16; its first 4 MiB count. `url` is where
    the answer came from in the end. A wall's owner beats the widget that it shows. No wall: a page that talks about
    walls, quotes one as text, loads a vendor's library or sensor, or is an error of the site itself. Raises TypeError
    for anything but text or bytes, and nothing for any content.
    """
    evidence = _evidence(body, url)
    for name, *marks in WALLS:
        if all(_holds(kind, pattern, evidence) for kind, pattern in zip(marks[::2], marks[1::2])):
            return name
    return None


def _holds(kind: str, pattern: str, evidence: dict[str, str]) -> bool:
    if kind.startswith('no '):
        return not _holds(kind[3:], pattern, evidence)
    if kind.endswith(' up to'):
        return len(evidence[kind[:-6]]) <= int(pattern)
    if kind in _WHOLE_LINE:  # the line break in front is a plain prefix, for which `re` has a fast search; '^' has not
        return bool(evidence[kind]) and re.search(f'\n(?:{pattern})(?=\n)', evidence[kind]) is not None
    text = evidence['text' if kind == 'sole text' else kind]
    found = re.search(pattern, text)
    return found is not None and (kind != 'sole text' or len(text) - len(found.group()) <= _BESIDE)


def _evidence(body: str | bytes | bytearray | memoryview, url: str) -> dict[str, str]:
    """Return the evidence of each kind; lines begin and end with a line break."""
    if isinstance(body, str):
        data = body[:FILE_LIMIT].encode('utf-8', 'surrogatepass')
    elif isinstance(body, (bytes, bytearray, memoryview)):
        data = bytes(body[:FILE_LIMIT])
    else:
        raise TypeError(f'challenge() takes str or bytes, not {type(body).__name__}')
    headers, redirect, start = _header_blocks(data)
    text = _decoded(data[start:start + FILE_LIMIT]).lower()
    page = _Page()
    json_lines: list[str] = []
    if re.match(r'\s*(?:\{\s*(?:["}]|\Z)|\[\s*[\[{"\d\]])', text):  # markup in a JSON string is a quotation
        json_lines = _json_lines(text)
    elif not re.match(_SOURCE_CODE, text) or '</script' in text:
        if not text.lstrip().startswith('<'):  # a text that quotes markup as Markdown does
            text = re.sub(r'(?s:```.*?(?:```|\Z))|`[^`\n]*`', ' ', text)
        page.read(text)
        if page.text.startswith('{'):  # JSON as a browser saves it
            json_lines = _json_lines(page.text)
    return {
        'header': _lines(headers), 'url': _lines([_address(url[:_VALUE_KEPT].lower()), redirect]),
        'title': _lines(page.titles if len(page.text) <= _ARTICLE else []), 'element': _lines(page.elements),
        'address': _lines(page.addresses), 'link': _lines(page.links), 'json': _lines(json_lines),
        'script': _code(''.join(page.scripts)), 'scripts': '.' * page.script_count, 'text': page.text}


_SELECTORS = {'id': '#%s', 'name': '[name=%s]', 'type': '[type=%s]', 'data-translate': '[data-translate=%s]'}
_ADDRESSES = ('src', 'href', 'action', 'data')
# The beginning of an answer that is a program: markup in its strings is no element.
_SOURCE_CODE = (r'\s*(?:/[/*]|#!|["\'(!;]|(?:from [\w.]+ )?import [\w.{*]|'
                r'(?:var|let|const|function|class|def|export|window|self|if|return|define|typeof)\b[^\n<]{0,80}[=;{(])')
# The rest of a tag behind its name, as browsers read it: a quote counts only behind '='. It matches anything, so it
# never goes back; the bound keeps the stack of `re` small, and read() goes on where it stopped.
_TAG_REST = r'(?:[^>=]+|=\s*(?:"[^"]*(?:"|\Z)|\'[^\']*(?:\'|\Z))?){0,200}>?'
# Group 1 opens something that is not markup up to its end. Tags without attributes tell nothing and are not matched.
_TOKEN = (r'<(?=[a-z!?])(?:!--(?:[^-]*--|-?)>|(!--|!\[cdata\[)|'
          r'(?:(script|style|title|textarea|xmp|iframe|noembed|noframes|template)(?=[\s/>]|\Z)|'
          r'(form(?=[\s/>])|[a-z][\w:-]{0,30}(?=[\s/])(?!\s*/?>)))' + _TAG_REST + r'|[!?](?=[^<>]*<)[^>]*>?)')
_ATTRIBUTE = (r'(class|id|name|type|src|href|action|data|content|http-equiv|data-translate)'
              r'\s*=\s*("[^"]*"?|\'[^\']*\'?|[^\s>]*?(?=/?>|\s|\Z))|[^\s/>=]+(?:\s*=\s*(?:"[^"]*"?|\'[^\']*\'?|[^\s>]*))?')


class _Page:
    """What a page of markup, in lower case, consists of."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.elements: set[str] = set()
        self.addresses: set[str] = set()
        self.links: set[str] = set()
        self.scripts: list[str] = []
        self.script_count = 0
        self.text = ''
        self.find_attributes = re.compile(_ATTRIBUTE).findall

    def read(self, text: str) -> None:
        """Take the page apart in one pass.

        html.parser takes quadratic time on some pages in every Python before 3.13.6, and is slow on all others.
        """
        types: dict[str, str] = {}  # by tag: most tags of a big page are written the same way many times
        pieces: list[str] = []
        at = 0
        scan, more = re.compile(_TOKEN).finditer, re.compile(_TAG_REST).match
        while at < len(text):
            for token in scan(text, at):
                if at < token.start():
                    pieces.append(text[at:token.start()])
                at = token.end()
                tag = token.group()
                if tag in types and not token.group(2):
                    continue
                section, raw, name = token.groups()
                if raw or name:
                    while text[at - 1] != '>' and at < len(text):
                        rest = more(text, at)
                        at = rest.end() if rest else len(text)
                    tag = text[token.start():at]
                if not section and tag not in types:
                    types[tag] = self._element(raw or name, tag) if raw or name else ''
                if section or raw:
                    end = text.find({'!--': '-->', '![cdata[': ']]>'}.get(section, f'</{raw}'), at)
                    content = text[at:end] if end >= 0 else text[at:]
                    if raw == 'title':
                        self.titles.append(_plain(content[:_VALUE_KEPT]))
                    elif raw == 'script':
                        self._script(types[tag], content)
                    elif raw == 'iframe':  # what it says to a reader without frames
                        pieces.append(content[:_VALUE_KEPT])
                    at += len(content) + (3 if section else 0)
                if at != token.end():
                    break
            else:
                break
        pieces.append(text[at:])
        seen_by_reader = re.sub(r'\s+|<[a-z/!?][^>]*>?', ' ', ' '.join(pieces))
        self.text = _plain(seen_by_reader[:8 * _TEXT_KEPT])[:_TEXT_KEPT]

    def _element(self, tag_name: str, tag: str) -> str:
        """Note the marks of a start tag and return its type attribute."""
        self.elements.add(tag_name)
        values: dict[str, str] = {}
        for name, written in self.find_attributes(tag, len(tag_name) + 1, _TAG_KEPT):
            if not name or name in values:  # of two, the first counts
                continue
            quote = written[:1]
            value = _plain((written.strip(quote) if quote in ('"', "'") else written)[:_VALUE_KEPT])
            values[name] = value
            if name == 'class':
                self.elements.update([f'{tag_name}.{token}' for token in value.split()])
            elif name in _SELECTORS:
                self.elements.add(tag_name + _SELECTORS[name] % value)
            elif name in _ADDRESSES and tag_name != 'a':
                self.addresses.add(f'{tag_name} {_address(value)}')
        if tag_name == 'input' and 'type' not in values:
            self.elements.add('input[type=text]')
        elif tag_name == 'meta' and values.get('http-equiv') == 'refresh':
            target = re.sub(r'\A[\d.\s]*[;,]?\s*(?:url\s*=\s*)?["\']?', '', values.get('content', ''))
            self.addresses.add(f'meta {_address(target)}')
        elif tag_name == 'a' and 'href' in values:
            self.links.add(_address(values['href']))
        return values.get('type', '')

    def _script(self, kind: str, code: str) -> None:
        self.script_count += 1
        # Data and templates also lie in scripts; a type like 'c0ffee-text/javascript' is one that Cloudflare delays.
        if not kind or re.search('javascript|ecmascript|module', kind):
            self.scripts.append(code)


def _lines(items: list[str] | set[str]) -> str:
    items = [item for item in items if item]
    return '\n' + '\n'.join(items) + '\n' if items else ''


def _plain(text: str) -> str:
    """Decode the entities and make each run of white space one blank."""
    if '&' in text:
        from html import unescape
        # Python refuses, and in older versions takes for ever, to read a number of thousands of digits.
        text = unescape(re.sub('&#x?[0-9a-f]{30,};?', ' ', text)).lower()
    return ' '.join(text.split())


def _address(url: str) -> str:
    """Write an address as '//host/path?query', or as it is where it has no host."""
    if '//' not in url and '\\' not in url:
        return url
    host = r'\A\s*(?:https?:)?//(?:[^/?#@]*@)?([^/?#:]*?)\.?(?::\d*)?(?=[/?#]|\Z)'
    return re.sub(host, r'//\1', url.replace('\\', '/'))


def _code(scripts: str) -> str:
    """Drop comments and strings, but for strings that can be an address or a name.

    A string with blanks, markup or braces in it is text, and may quote the code of a wall.
    """
    before_regex = r'(=,:;!&|?{}\['  # behind these a slash begins a regular expression, which may hold a quote
    scripts = re.sub(r'\\.', '', scripts.replace('\\/', '/'), flags=re.DOTALL)
    return ''.join(re.findall(
        rf'(?:(?<=[{before_regex}])|(?<=[{before_regex}] ))/[^/*\n][^/\n]{{0,200}}/+'
        rf'|((?:[^"\'`/]+|"[^\s<{{"\'`]*"|\'[^\s<{{"\'`]*\''
        rf'|(?<![{before_regex}])(?<![{before_regex}] )/(?![/*])){{1,64}})'
        r'|(?:(?:"[^"\n]*"?|\'[^\'\n]*\'?|`[^`]*`?|(?s:/\*.*?(?:\*/|\Z))|//[^\n]*)\s*){1,64}', scripts))


def _json_lines(text: str) -> list[str]:
    if len(text) > 2 * _TEXT_KEPT:  # no wall is that long
        return []
    for attempt in (text, text.rpartition(',')[0] + '}'):  # the second for one that is cut off
        try:
            found = json.loads(attempt)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return [_plain(f'{key}: {value}'.lower()) for key, value in found.items()
                    if not isinstance(value, (dict, list))]
    return []


def _header_blocks(data: bytes) -> tuple[list[str], str, int]:
    """Return the last block of headers, the address of the last redirect, and where the body begins."""
    headers: list[str] = []
    redirect, at = '', 0
    for _ in range(100):  # curl follows 50 redirects
        status = re.compile(rb'HTTP/\d(?:\.\d)?[ \t]+(\d\d\d)([^\n]*)').match(data, at)
        if not status:
            break
        blank = re.compile(rb'\r?\n\r?\n').search(data, status.end())
        block = data[status.end():blank.start() if blank else len(data)][:_HEADERS_KEPT].decode('latin-1').lower()
        at = blank.end() if blank else len(data)
        pairs = [line.partition(':') for line in block.split('\n')]
        headers = [f'{name.strip()}: {value.strip()}' for name, _, value in pairs]
        code = status.group(1)
        if code[:1] == b'3':
            for name, _, value in pairs:
                if name.strip() == 'location' and '//' in value:
                    redirect = _address(value.strip())
        # Behind any other answer comes its body, which may quote headers.
        if code[:1] not in b'13' and code not in (b'401', b'407') and b'established' not in status.group(2).lower():
            break
    return headers, redirect, at


def _decoded(data: bytes) -> str:
    if data[:2] == b'\x1f\x8b':
        data = _gunzip(data)
    head = data[:256]
    wide, narrow = head[1::2].count(0), head[::2].count(0)
    encoding = 'utf-8'
    if head[:2] in (b'\xff\xfe', b'\xfe\xff'):
        encoding = 'utf-16'
    elif 2 * max(wide, narrow) > len(head) // 2 and 8 * min(wide, narrow) < len(head):
        encoding = 'utf-16-le' if wide > narrow else 'utf-16-be'
    text = data.decode(encoding, 'replace').lstrip('\ufeff')
    controls = r'[\x00-\x08\x0e-\x1f]'
    if re.search(controls, text[:16]) or len(re.findall(controls, text[:1000])) > 50:
        return ''  # a picture or an archive; markup that is buried in it is none
    return text.replace('\0', '')


def _gunzip(data: bytes) -> bytes:
    """Unpack what can be unpacked of a gzip, at most `FILE_LIMIT` bytes and a little."""
    import zlib
    unpacker = zlib.decompressobj(31)
    pieces: list[bytes] = []
    room = FILE_LIMIT
    step = 1 + len(data) // 65536  # small, since the output of a step is lost when the data are damaged in it
    for at in range(0, len(data), step):
        try:
            piece = unpacker.decompress(data[at:at + step])
        except zlib.error:
            break
        pieces.append(piece)
        room -= len(piece)
        if room <= 0 or unpacker.eof:
            break
    return b''.join(pieces)[:FILE_LIMIT]


# --- Files from outside, profiles, tokens ---------------------------------------------------------------------------


def read_file(path: str | os.PathLike[str], limit: int = FILE_LIMIT) -> bytes:
    """Return the first `limit` bytes of a regular file; OSError for anything else, a FIFO included."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, 'not a regular file', path)
        with open(fd, 'rb', closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(fd)


def host_of(url: str) -> str:
    """Return the host of a URL or host, with or without port, in lower case; ValueError where there is none."""
    from urllib.parse import urlsplit
    if not isinstance(url, str):
        raise ValueError('a host must be text, not %r' % (url,))
    try:
        host = urlsplit(url if re.match('([a-z][a-z0-9+.-]*:)?//', url, re.I) else '//' + url).hostname
    except ValueError:
        host = None
    if not host:
        raise ValueError('no host in %r' % one_line(url))
    return host.rstrip('.')


def load_profile(host: str, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return a site's published limits as keywords of Gate: per_hour, burst, cooldown in seconds, None for no limit.

    `host` may be a URL; `path` is a table of your own instead of the shipped profiles.tsv. Raises ValueError, with
    file and line, for a host without a row and for a table with a row that cannot be meant so.
    """
    import csv
    host = host_of(host)
    shipped = os.path.join(os.path.dirname(os.path.realpath(__file__)), 'profiles.tsv')
    table = path_text(path, 'profiles') if path else shipped
    name = one_line(table)
    try:
        data = read_file(expand(table), FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:  # a row that is cut off would be another limit
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        text = data.decode('utf-8-sig')
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError('%s cannot be read: %s' % (name, getattr(error, 'strerror', None) or error)) from None
    # comments become blank lines, which keep the count right
    lines = ['' if line.startswith('#') else line for line in re.split('\r?\n', text)]
    reader = csv.reader(lines, delimiter='\t', quoting=csv.QUOTE_NONE)
    found: dict[str, Limit] = {}
    header: list[str] = []
    try:
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                needed = [cell for cell in header if cell in ('host', *LIMITS)]
                if 'host' not in needed or len(needed) < 2 or len(set(needed)) < len(needed):
                    raise ValueError('the header needs a column host and some of per_hour, burst, cooldown, each once')
                continue
            if len(cells) > len(header):
                raise ValueError('more cells than the header has')
            row = dict(zip(header, map(str.strip, cells)))
            row_host = host_of(row['host'])
            if row_host in found:
                raise ValueError('a second row of %s' % one_line(row_host))
            found[row_host] = limit_of({field: row.get(field, '') for field in LIMITS})
        if not header:
            raise ValueError('there is no header line')
    except (ValueError, csv.Error) as error:
        raise ValueError('%s:%d: %s' % (name, max(reader.line_num, 1), error)) from None
    if host not in found:
        raise ValueError('%s has no row for %s: add one (--profiles names a table of your own), or leave --profile '
                         'away and give --per-hour or --burst and --cooldown' % (name, one_line(host)))
    return {field: getattr(found[host], field) for field in LIMITS}


def limit_of(cells: dict[str, str]) -> Limit:
    """Return the limit that the cells of a row stand for; ValueError for a bad or missing one."""
    values: dict[str, Any] = {}
    for field, cell in cells.items():
        try:
            values[field] = parse_number(cell) if cell else None
        except ValueError:
            raise BadSetting(field, 'must be a number, not %r' % one_line(cell, 40)) from None
    limit = Limit(**values)
    if not limit.windows:
        raise ValueError('the row limits nothing')
    return limit


def reread_token(path: str | os.PathLike[str], token: str | None) -> str | None:
    """Return the token that is now in the file, if it is another one than `token`; else None.

    For a long-running lane on a 401: another program may have renewed the login. A file that is missing, empty or
    no text is None as well.
    """
    try:
        now = read_file(expand(os.fsdecode(path))).decode('utf-8-sig').strip()
    except (OSError, ValueError):
        return None
    return now if now and now != (token or '').strip() else None
