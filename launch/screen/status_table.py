"""The status of a job on the screen: a few lines, and a table that fits the terminal."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from ...client.chief.calls import JobStatus, TaskStatus
from ...cluster.replication.configuration import Move, MovePhase, ShareLeader
from ...core.report import LedgerCounts, ProcessUsage, TableCounters
from ...core.step_times import PARTS, STEP
from ...core.task import State
from ...core.terminal import counted, terminal_line
from .display import new_table
from .numbers import ordered

_WIDE = 110
_TABLES = 4  # of a ps: growing tables that are shown
_FEW_SHARES = 4  # that are listed one by one
_MANY_PS = 16  # that are listed


def human_bytes(count: float) -> str:
    """Write 1536 as ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Write 75 as ``1m15s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def human_time(seconds: float) -> str:
    """Write 0.0123 as ``12 ms``: two digits, as far as a histogram of times has them."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            shown = seconds * scale
            return f"{shown:.0f} {unit}" if shown >= 10 else f"{shown:.2g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


_STATE_STYLES = {
    State.ALIVE: "green",
    State.DONE: "green",
    State.MISSING: "yellow",
    State.LEFT: "yellow",
    State.LOST: "red",
    State.FAILED: "red",
}


_SECURITY = {
    "insecure": "INSECURE: whoever reaches its ports can read and change the model",
    "local": "security: a key that only this user can read",
    "token": "security: TLS and tokens",
    "mtls": "security: TLS with certificates on both sides",
}


def status_lines(status: JobStatus) -> list[str]:
    """Write what holds for the whole job: phase, step, the chief's address, the last checkpoint."""
    goal = f"/{status.total_steps}" if status.total_steps else ""
    age = human_seconds(status.age_s)
    when = "after" if status.phase.is_over else "for"
    lines = [f"job {status.phase} {when} {age} · global step {status.global_step}{goal}"]
    if address := chief_address(status):
        lines[0] += f" · chief {address}"
    if status.security:
        lines.append(_SECURITY.get(status.security, status.security))
    if status.last_checkpoint:
        lines.append(f"checkpoint {status.last_checkpoint}")
    lines += _share_lines(status) + _cut_lines(status)
    lines += [_ledger_line(ledger) for ledger in status.ledgers]
    lines += [finding.text for finding in status.findings]
    if status.reason:
        lines.append(status.reason)
    return lines


def _ledger_line(ledger: LedgerCounts) -> str:
    """Write how far data has come of which each example is trained once."""
    return (
        f"data {ledger.name!r}: epoch {ledger.epoch}, {ledger.done} of "
        f"{counted(ledger.ranges, 'range')} trained, {ledger.leased} leased"
    )


def _share_lines(status: JobStatus) -> list[str]:
    """Write which ps leads and follows each share; of many, how many each ps has, and what is
    lacking.
    """
    wanted, shares = status.ps_replicas, status.shares
    if not shares or status.phase.is_over:
        return []
    lacking = [each for each in shares if 1 + len(each.followers) < wanted]
    has_followers = wanted > 1
    lines = [f"{counted(len(shares), 'share')} of the variables"]
    if has_followers:
        whole = len(shares) - len(lacking)
        have = "has" if len(shares) == 1 else "have"
        lines = [f"{whole} of {counted(len(shares), 'share')} {have} {wanted} replicas"]
    if status.failovers:
        failovers = counted(status.failovers, "failover")
        lines[0] += f" · {failovers}, the last took {status.last_failover_s:.2f} s"
    if status.handovers:
        lines[0] += f" · {status.handovers} handed over"
    is_short = has_followers and len(shares) <= _FEW_SHARES
    lines += [] if is_short else _lines_by_ps(shares)
    lines += [_share_line(each) for each in (shares if is_short else lacking[:_FEW_SHARES])]
    if status.move is not None:
        lines.append(_move_line(status.move))
    return lines


def _cut_lines(status: JobStatus) -> list[str]:
    """Write what has come of the cuts; nothing if none was tried."""
    cuts = status.cuts
    if not cuts.taken and not cuts.void:
        return []
    lines = [f"{counted(cuts.taken, 'consistent cut')}, the last took {cuts.last_s:.2f} s"]
    if cuts.void:
        lines.append(
            f"{counted(cuts.void, 'cut')} came to nothing, the last since {cuts.last_void}"
        )
    return lines


def _share_line(share: ShareLeader) -> str:
    followers = ", ".join(task.short for task in share.followers)
    followed = f"followed by {followers}" if followers else "no follower yet"
    return f"share {share.share}: {share.leader.short} leads, {followed}"


def _lines_by_ps(shares: Sequence[ShareLeader]) -> list[str]:
    """Write lines such as ``ps:1 leads shares 1, 3, 5, follows 4``."""
    tasks = {task for each in shares for task in (each.leader, *each.followers)}
    lines = []
    for task in sorted(tasks, key=lambda task: task.index)[:_MANY_PS]:
        led = [str(each.share) for each in shares if each.leader == task]
        followed = [str(each.share) for each in shares if task in each.followers]
        parts = [f"leads shares {', '.join(led)}"] if led else ["leads no share"]
        parts += [f"follows {', '.join(followed)}"] if followed else []
        lines.append(f"{task.short} {', '.join(parts)}")
    more = len(tasks) - len(lines)
    return [*lines, f"… and {more} more ps"] if more > 0 else lines


def _move_line(move: Move) -> str:
    """Write how far the last move of a share has come, or how it ended."""
    done = f"{move} took {move.seconds:.2f} s"
    ways = {
        MovePhase.COPYING: f"{move}: copied {human_bytes(move.copied_bytes)} of "
        f"{human_bytes(move.total_bytes)}",
        MovePhase.DONE: done,
        MovePhase.FAILED: f"{move} failed: {move.reason}",
    }
    return ways.get(move.phase, f"{move}: {move.phase}")


def chief_address(status: JobStatus) -> str:
    """Find the address of the chief; of a job without one, of worker 0."""
    addresses = {item.task.short: item.address for item in status.tasks}
    return addresses.get("chief:0") or addresses.get("worker:0", "")


def status_table(status: JobStatus, width: int = 200) -> Table:
    """Make a table of every task with its state, age and numbers; who is missing, and since when.

    Below 110 columns without addresses, pushes and bytes.
    """
    wide = width >= _WIDE
    more = ("pushes", "sent", "received") if wide else ()
    names = ("task", "state", "since", *(["address"] if wide else []), "steps", *more, "detail")
    table = new_table(*names, right=("since", "steps", *more))
    for item in status.tasks:
        style = _STATE_STYLES[item.state]
        # The last status is taken while the ps still serve.
        ended = status.phase.is_over and item.state is State.ALIVE
        numbers = activity(item)
        table.add_row(
            item.task.short,
            Text("ended" if ended else item.state, style),
            human_seconds(item.since_s),
            *([item.address] if wide else []),
            *(numbers if wide else numbers[:1]),
            item.detail or _detail(item),
        )
    return table


def step_table(status: JobStatus, width: int = 200) -> Table | None:
    """Make a table of where the time of each task's steps goes; None: there were no steps.

    Below 110 columns without the 90th percentile.
    """
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    if width < _WIDE:
        del quantiles["p90"]
    table = new_table("task", *quantiles, *PARTS, right=(*quantiles, *PARTS))
    for item in status.tasks:
        times = item.report.step_times
        if times.count:
            step, shares = times.part(STEP), [times.share(name) for name in PARTS]
            table.add_row(
                item.task.short,
                *(human_time(step.quantile(q)) for q in quantiles.values()),
                *(f"{share:.0%}" if share else "" for share in shares),
            )
    return table if table.row_count else None


def usage_table(status: JobStatus) -> Table | None:
    """Make a table of what each task uses of its machine; None: none has said."""
    with_gpu = any(item.usage.gpus for item in status.tasks)
    names = ("task", "memory", "of", "left", "cores", "busy", *(["GPU", "its memory"] * with_gpu))
    table = new_table(*names, right=names[1:])
    for item in status.tasks:
        usage = item.usage
        if usage.memory_bytes:
            table.add_row(
                item.task.short,
                human_bytes(usage.memory_bytes),
                human_bytes(usage.memory_limit_bytes),
                human_bytes(usage.memory_left_bytes),
                f"{usage.cores:.1f}",
                f"{usage.machine_cores:.1f} of {usage.machine_cpus}",
                *(gpu_texts(usage) if with_gpu else ()),
            )
    return table if table.row_count else None


def gpu_texts(usage: ProcessUsage) -> tuple[str, str]:
    """Write how busy the GPUs of a task are, and how full: ``87%, 12%`` and ``3.0 of 80.0 GiB``."""
    busy = ", ".join("?" if gpu.busy < 0 else f"{gpu.busy:.0%}" for gpu in usage.gpus)
    used = sum(gpu.own_bytes or gpu.used_bytes for gpu in usage.gpus)
    total = sum(gpu.total_bytes for gpu in usage.gpus)
    return busy, f"{human_bytes(used)} of {human_bytes(total)}" if usage.gpus else ""


def activity(item: TaskStatus) -> tuple[str, str, str, str]:
    """Write (steps, pushes, bytes sent, bytes received) of a task, as text."""
    report, counters = item.report, item.counters
    if counters is not None:
        return (
            "",
            str(counters.pushes),
            human_bytes(counters.bytes_out),
            human_bytes(counters.bytes_in),
        )
    if not report.steps:
        return ("", "", "", "")
    if item.task.type == "evaluator":
        return ("", "", "", "")
    return (
        str(report.steps),
        str(report.pushes),
        human_bytes(report.bytes_pushed),
        human_bytes(report.bytes_pulled),
    )


def _detail(item: TaskStatus) -> str:
    counters = item.counters
    if counters is not None:
        return placement_text(item)
    parts = (metrics_text(item.report.metrics), transports_text(item.report.transports))
    return " · ".join(part for part in parts if part)


def transports_text(transports: Sequence[str]) -> str:
    """Write a task's connections: ``via shm``, or per ps where they differ (``ps:0 shm, ps:1 grpc
    (…)``).
    """
    ways = {text.partition(" ")[2] for text in transports}
    return f"via {ways.pop()}" if len(ways) == 1 else ", ".join(transports)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Write metrics as ``loss 0.09 · accuracy 0.975``."""
    return " · ".join(f"{terminal_line(name)} {metrics[name]:.4g}" for name in ordered(metrics))


def placement_text(item: TaskStatus) -> str:
    """Write what a ps holds: ``3 shards, 8.3 KiB + 16.6 KiB slots: w1, b1, w2/part_0``; and
    tables.
    """
    counters = item.counters
    if counters is None:
        return ""
    more = ", …" if counters.shards > len(counters.labels) else ""
    slots = f" + {human_bytes(counters.slot_bytes)} slots" if counters.slot_bytes else ""
    names = f": {', '.join(counters.labels)}{more}" if counters.labels else ""
    shards = counted(counters.shards, "shard")
    held = f"{shards}, {human_bytes(counters.value_bytes)}{slots}{names}"
    return " · ".join([held, *map(_table_text, counters.tables[:_TABLES])])


def _table_text(table: TableCounters) -> str:
    """Describe a growing table: ``users 6012 rows, 735.2 KiB, 20 evicted``, or ``…, 735.2 KiB + 2.0
    MiB on disk``.
    """
    disk = f" + {human_bytes(table.disk_bytes)} on disk" if table.disk_bytes else ""
    counts = {"evicted": table.evicted, "refused": table.refused, "no room": table.full}
    rest = "".join(f", {count} {what}" for what, count in counts.items() if count)
    return f"{table.name} {counted(table.rows, 'row')}, {human_bytes(table.num_bytes)}{disk}{rest}"
