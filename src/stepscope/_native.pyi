"""The hot loops, in C++: `native/`. Bytes in, bytes out; numpy is left to the callers. Only what
works on whole columns takes arrays, as anything else with a buffer."""

from typing import Any

LONGEST_EVENT_BYTES: int
MOST_EVENTS: int
MOST_NAME_BYTES: int
MOST_CALLS: int
MOST_CALL_BYTES: int

class Scanner:
    """The events of a trace, chunk by chunk, to columns of numbers.

    Any thread may use it, one at a time; while it works, other threads run.
    """

    def __init__(self, categories: dict[str, str], calls: tuple[str, ...]) -> None:
        """Sorts events into tables.

        Args:
            categories: the table of each category that is kept: `cpu`, `mark`, `runtime`,
                `device` or `python`.
            calls: how names of communication calls begin; these of `cpu` and `mark` also make
                rows of the table `calls`.
        """
    def feed(self, data: bytes, /) -> bool:
        """Takes what follows the bytes taken before, the first from behind the array's `[`.

        Returns whether more is wanted: not behind the array's end, nor beyond the limits.
        """
    def finish(self) -> None:
        """Takes what was kept back for more to come."""
    def take(self, table: str, /) -> dict[str, bytes]:
        """The columns of a table, in order of time, those that last longer first; forgets them.

        `start_ns`, `duration_ns`; `name`, `thread` and `call` are places in `names`, `threads`
        and `calls`, the last -1 for none; the smallest int64 stands for an unknown number. All are
        int64, but `name` is int32.
        """
    def names(self) -> list[bytes]:
        """Distinct names in UTF-8, which the file may have wrong."""
    def threads(self) -> list[bytes]:
        """Distinct thread ids, as JSON."""
    def calls(self) -> list[bytes]:
        """Distinct arguments of communication calls, as JSON objects."""
    def rest(self) -> bytes:
        """What stands behind the array, from its end; else bytes that are no whole event."""
    @property
    def closed(self) -> bool:
        """Whether the array came to its end."""
    @property
    def oversized(self) -> bool:
        """Whether one event was longer than any event can be."""
    @property
    def full(self) -> bool:
        """Whether there is more in the file than in any job's."""
    @property
    def kept(self) -> int: ...
    @property
    def unreadable(self) -> int:
        """Elements that are no events."""
    @property
    def impossible(self) -> int:
        """Events whose times cannot be true."""
    @property
    def first_thread(self) -> int:
        """The place in `threads` of a process's first thread, -1 where none is known."""
    @property
    def first_device(self) -> int:
        """The number of the device of the first activity on one, -1 where none is known."""

def members(text: bytes, names: tuple[str, ...], /) -> dict[str, bytes]:
    """The values, as written, of the named members of a JSON object.

    Raises:
        ValueError: it is no whole JSON object.
    """

def deflated_rows(rows: bytes, row: int, /) -> bytes:
    """Rows of equal length that resemble one another as blocks of deflate, of which none is the
    last, up to a whole byte; a match in them points back into them.

    Args:
        row: bytes of each.

    Raises:
        ValueError: there are no whole rows, or they are longer than deflate points back.
    """

def rows(shared: bytes, count: int, holes: tuple[tuple[int, int, bytes], ...], /) -> bytes:
    """Rows of equal length, one after the other: `shared` with a number of its own in each hole.

    Args:
        holes: where each begins, how many bytes its varint has (0: none, but eight bytes,
            little-endian), and an int64 per row.

    Raises:
        ValueError: a hole does not fit the row, or has not as many numbers as there are rows.
    """

def record_kinds(packet: bytes, offset: int, limit: int, /) -> int:
    """Which kinds of records a packet holds: bit `k` is set for kind `k`, bit 62 for all above.

    Args:
        offset: where the records begin, of 64 bytes each (`wire.records`).
        limit: the largest number, and the smallest below zero, that any of their fields may hold.

    Returns -1 where one holds a number beyond that.
    """

class Keys:
    """Numbers (rank, kernel, stream) in the order in which they were first seen."""

    def __init__(self, most: int) -> None: ...
    def codes(self, rank: int, kernels: bytes, streams: bytes, /) -> bytes:
        """The number of each event's key as uint32; its largest where there was no more room.

        Args:
            rank: of all these events.
            kernels: an int64 per event.
            streams: an int64 per event.
        """
    def known(self) -> bytes:
        """Every key in order: rank, kernel and stream, each int64."""

class Histograms:
    """Log-binned histograms of durations, by group."""

    def __init__(self, most_groups: int, most_blocks: int) -> None:
        """A block is 512 B: one group's durations of one octave."""
    def add(self, groups: bytes, durations: bytes, /) -> tuple[int, int]:
        """Counts durations (int64, nanoseconds) in their groups (uint32).

        Returns how many could not be true, and for how many there was no room.
        """
    def modes(self) -> bytes:
        """A row per mode, in six int64: group, number in order, count, p50, p99, longest."""
    @property
    def size_bytes(self) -> int: ...

def published(groups: bytes, durations: bytes, number: int, /) -> tuple[bytes, int]:
    """Modes of durations (int64, nanoseconds) by group (uint32, below `number`), as ARGUS has it.

    Returns rows as of `Histograms.modes`, and how many durations could not be true.

    Raises:
        ValueError: a group is not below `number`.
    """

def mean_distances(
    begins: bytes, log_p50: bytes, sigma: bytes, weight: bytes, logs: bytes, weights: bytes, /
) -> bytes:
    """The mean Wasserstein-1 distance of each rank to all others, a float64 per rank.

    Args:
        begins: a uint32 per rank, where its modes begin, and one more for the end of the last.
        log_p50: of the log-normal modes; this and the others are float64.
        sigma: of their logarithms, above 0.
        weight: 1 in sum over the modes of a rank.
        logs: a grid of logarithms of durations.
        weights: what each point of it counts in the integral.

    Raises:
        ValueError: columns do not fit together.
    """

def peer_medians(values: bytes, members: int, columns: int, /) -> bytes:
    """For every value the median of the other members of its group, column by column.

    Args:
        values: float64, [groups, members, columns]; what is not finite is unknown.

    Returns as many float64; NaN for what is unknown or alone.

    Raises:
        ValueError: there are no whole groups.
    """

def wide_windows(series: bytes, width: int, ratio: float, /) -> bytes:
    """A byte for each window of so many neighbours: 1 where its largest exceeds `ratio` times its
    smallest.

    Raises:
        ValueError: the series, of float64, is shorter than a window.
    """

def largest_rise(series: bytes, least: float, spread: float, /) -> tuple[int, float]:
    """The split of a series of float64 with the largest ratio of means above `least`, where either
    side's deviation is below `spread` times its mean; (0, 0.0) where there is none."""

def imbalances(values: bytes, ranks: int, order: bytes, bounds: bytes, /) -> tuple[bytes, bytes]:
    """Deviation over mean of every group, and how many deviations each rank lies above the mean.

    Args:
        values: float32, [rows, ranks].
        order: the ranks of one group after the other, uint32.
        bounds: where in `order` each group begins, and the end of the last, uint32.

    Returns float32, [rows, groups] and [rows, ranks]; 0 for ranks of no group.

    Raises:
        ValueError: there are no whole rows, an empty group, or no such rank.
    """

def pass_slacks(
    order: bytes, before: bytes, durations: bytes, leads: bytes, members: int, lanes: int, /
) -> tuple[bytes, bytes, bytes]:
    """The earliest start and the slack of each pass, and when each lane ends; all int64.

    Args:
        order: passes (uint32), each after those that it waits for.
        before: the two passes that each waits for (int32), -1 for none.
        durations: int64, [passes, members, lanes]; that of the slowest member counts.
        leads: int64, [passes, lanes]: how long each begins after what it waits for; empty: at once.

    Returns [passes, lanes] twice, and [lanes].

    Raises:
        ValueError: columns do not fit together, or a pass waits for a later one.
    """

def mean_divergences(values: bytes, points: int, some: bytes = ..., /) -> bytes:
    """The mean largest difference of each row to all others, a float64 per row, from 0 to 1.

    Args:
        values: int16, [rows, points], from 0 to 32767, which stands for 1.
        some: such rows; the difference to these is given instead.

    Raises:
        ValueError: there are no whole rows, or a value is below 0.
    """

def innermost(start: bytes, end: bytes, of: bytes, /) -> tuple[bytes, bytes]:
    """Who runs at any time of one thread: of the calls that run, the one that started last.

    Args:
        start: int64, in order; of calls that start together, the longest comes first.
        end: int64.
        of: the function of each call, int32.

    Returns disjoint segments in order, of three int64 each: start, end and call stack; and the
    call stacks, of three int64 each: the stack of the caller (-1: none), the function, and how
    often it was called. Callers come before what they call.

    Raises:
        ValueError: columns do not fit together, or calls are not in order.
    """

def critical_ns(
    classes: tuple[tuple[bytes, bytes, bytes], ...], functions: int, start: int, end: int, /
) -> bytes:
    """The time of each function in which nothing of a higher class runs, an int64 per function.

    Args:
        classes: the highest first; of each, start and end of its events (int64) and their
            functions (int32), in order of start.
        functions: their number.
        start: only time from here counts,
        end: up to here.

    Raises:
        ValueError: columns do not fit together, or events are not in order.
    """

def busiest(
    use: bytes, begin: bytes, end: bytes, share: float, least: float, /
) -> tuple[bytes, bytes]:
    """The critical duration of each execution, and the use of the resource in it.

    Args:
        use: float64, a resource's samples.
        begin: int64, the first sample of each execution,
        end: and the one after its last.
        share: of the execution's use that its critical duration has at least; above one half.
        least: use up to this counts as zero.

    Returns the first sample of each critical duration and the one after its last, int64; and the
    mean and the standard deviation in it, float64, not a number without samples.

    Raises:
        ValueError: an execution is not within the samples.
    """

def unlike(values: bytes, peers: bytes, limit: float, /) -> bytes:
    """For every point, how many peers are at a Manhattan distance of `limit` or more, as int32.

    Args:
        values: float32, [3, points]; all finite.
        peers: float32, [3, peers]; all finite.

    Raises:
        ValueError: they are not three coordinates each.
    """

def gather(column: Any, width: int, rows: Any, room: Any, /) -> bool:
    """Copies rows of a column to where there is room; rows that lie together at once.

    Returns whether all rows exist; otherwise the room may hold anything.

    Args:
        column: a contiguous array, of one dimension,
        width: whose items have so many bytes: 1, 2, 4 or 8.
        rows: int64, contiguous; from 0.
        room: likewise, as many items as rows.

    Raises:
        ValueError: it is not as much room.
    """

def stable_order(values: Any, room: Any, /) -> bool:
    """The stable order of numbers, where there is room.

    Returns whether all are from 0 to 2^32 - 1; otherwise the room may hold anything.

    Args:
        values: int64, contiguous.
        room: likewise, as many.

    Raises:
        ValueError: it is not as much room.
    """

def merge(start: Any, end: Any, merged_start: Any, merged_end: Any, /) -> int:
    """Merges intervals that touch or overlap, without empty ones, to where there is room.

    Returns how many they become; -1 if they are not in order of their starts.

    Args:
        start, end: int64, contiguous.
        merged_start, merged_end: likewise, as many.

    Raises:
        ValueError: columns differ in length, or it is not as much room.
    """

def covered(start: Any, end: Any, before: Any, position: Any, room: Any, /) -> None:
    """The covered length left of each position, where there is room.

    Args:
        start, end: of disjoint intervals in order; int64, contiguous.
        before: the covered length left of each of them; likewise.
        position: likewise; if these rise it is fastest.
        room: likewise, as many as positions.

    Raises:
        ValueError: columns differ in length, or it is not as much room.
    """

def count_until(ordered: Any, limit: Any, room: Any, /) -> None:
    """How many numbers are no larger than each limit, where there is room.

    Args:
        ordered: int64, contiguous, never falling.
        limit: likewise, in any order; if they rise it is fastest.
        room: likewise, as many as limits.

    Raises:
        ValueError: it is not as much room.
    """

def on_one_clock(time: Any, clock: Any, origin: int, offset: Any, drift: Any, room: Any, /) -> bool:
    """The times less what their clocks are ahead, where there is room.

    Returns whether all clocks are known; otherwise the room may hold anything.

    Args:
        time: int64, contiguous; the smallest one is no time, and stays.
        clock: the number of each row's clock, likewise; times of those below 0 stay.
        origin: the time at which a clock is as far ahead as its
        offset: float64, contiguous, and
        drift: by how much that changes per unit of time; likewise.
        room: as many int64 as times, contiguous; it may be the times themselves.

    Raises:
        ValueError: columns differ in length, or it is not as much room.
    """
