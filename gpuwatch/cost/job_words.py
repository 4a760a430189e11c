"""What a job report says in words: what its groups mean, what is wrong with the history, why it is empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from gpuwatch.model.job_history import JobHistory
from gpuwatch.model.job_report import JobRow


def said(groups: Mapping[str, JobRow]) -> Iterable[str]:
    """One sentence for each group whose name says more, or less, than it seems."""
    failed, cancelled = groups.get("failed"), groups.get("cancelled")
    if failed is not None and failed.gpu_seconds:
        yield (
            f"Failed: {worth(failed, 'at most ')}: an UPPER BOUND of what failures cost. A job that saves and then "
            "fails loses only what came after its last save; a job history does not know when it saved."
        )
    if cancelled is not None and cancelled.gpu_seconds:
        yield (
            f"Cancelled: {worth(cancelled)}. How much of it was useful is not known: large training runs are often "
            "stopped by hand when they have done their work."
        )
    for name, words in (
        ("preempted", "stopped for more important jobs; what they had saved is not known."),
        ("requeued", "tries that went back to the queue; what they had saved is not known."),
        ("running", "still running at the end of the report."),
    ):
        row = groups.get(name)
        if row is not None and row.gpu_seconds:
            yield f"{name.capitalize()}: {worth(row)}: {words}"


def waste_of(groups: Mapping[str, JobRow], idle: JobRow | None) -> tuple[JobRow | None, str]:
    """The one line on top: what failed and what no job held, as an upper bound, and what is not in it."""
    parts = [
        (row, words)
        for row, words in ((groups.get("failed"), "of jobs that failed"), (idle, "in no job"))
        if row is not None and row.gpu_seconds > 0
    ]
    if not parts:
        return None, ""
    priced = all(row.usd is not None for row, _ in parts)
    whole = JobRow(
        keys=("waste",),
        detail="upper bound: " + " and ".join(words for _, words in parts),
        gpu_seconds=sum(row.gpu_seconds for row, _ in parts),
        gpu_hours=sum((row.gpu_hours for row, _ in parts), Decimal(0)),
        usd=sum((row.usd for row, _ in parts if row.usd is not None), Decimal(0)) if priced else None,
        unpriced_gpu_seconds=sum(row.unpriced_gpu_seconds for row, _ in parts),
    )
    text = f"Waste, an UPPER BOUND: {worth(whole, 'at most ')}"
    text += f" ({'; '.join(f'{worth(row)} {words}' for row, words in parts)})." if parts[1:] else f" {parts[0][1]}."
    unjudged = [groups[name] for name in ("cancelled", "preempted", "requeued") if name in groups]
    if hours := sum((row.gpu_hours for row in unjudged), Decimal(0)):
        text += (
            f" Not in it: {hours:,} GPU-hours of jobs that were cancelled, preempted or requeued, of which a job "
            "history does not know what was useful."
        )
    if idle is None:
        text += " Give --fleet-gpus to see what was in no job."
    return whole, text


def findings_of(history: JobHistory, unpriced: bool, rates_known: bool) -> list[str]:
    """Everything that a reader must know before they trust the figures."""
    found = []
    if history.broken_count:
        named = "; ".join(f"line {one.line}: {one.why}" for one in history.broken)
        rest = history.broken_count - len(history.broken)
        found.append(
            f"{counted(history.broken_count, 'row', 'rows')} could not be read and "
            f"{'is' if history.broken_count == 1 else 'are'} left out: {named}"
            + (f"; and {rest:,} more" if rest else "")
        )
    if history.unknown_gpus_count:
        named = "; ".join(f"line {one.line}: {one.why}" for one in history.unknown_gpus)
        rest = history.unknown_gpus_count - len(history.unknown_gpus)
        found.append(
            f"{counted(history.unknown_gpus_count, 'try', 'tries')} held an unknown number of GPUs for "
            f"{history.unknown_gpus_job_seconds / 3600:,.1f} hours, counted as none: {named}"
            + (f"; and {rest:,} more" if rest else "")
        )
    others = sorted({one.state for one in history.sums if one.group == "other"})
    if others:
        found.append(
            f"States that are not known here stand under their own names, in no group: {', '.join(others[:10])}"
            + (f" and {len(others) - 10:,} more." if len(others) > 10 else ".")
        )
    if unpriced and not rates_known:
        found.append("Dollars are unknown: give --usd-per-gpu-hour 3.40, or --sku ND96asr_v4 with --region eastus.")
    if history.rows and not history.further_tries:
        found.append(
            "No job has more than one record. If the dump was made without --duplicates, the GPU time of tries before "
            "a requeue is missing."
        )
    if history.repeated:
        found.append(f"{counted(history.repeated, 'row', 'rows')} repeated a try and counted once.")
    if history.gpuless_tries:
        found.append(f"{counted(history.gpuless_tries, 'try', 'tries')} of jobs without GPUs: counted, not priced.")
    if history.running_tries:
        found.append(
            f"{counted(history.running_tries, 'job was', 'jobs were')} running: counted up to the end of the report."
        )
    return [*found, *history.notes]


def empty(history: JobHistory) -> str:
    """Why there is nothing to report, and what to do."""
    if history.outside:
        return f"All {history.outside:,} tries lie outside the period. Name another one, or none."
    if history.broken_count:
        first = history.broken[0]
        return f"None of {history.rows:,} rows could be read. The first: line {first.line}: {first.why}."
    if history.steps:
        return f"All {history.steps:,} rows are steps (.batch, .extern), whose jobs are missing from the dump."
    return (
        "The dump has a header and no jobs. sacct shows the jobs of the user who asks, of today: give --allusers, "
        "--starttime and --endtime."
    )


def worth(row: JobRow, before: str = "") -> str:
    """GPU-hours and dollars of a line; `before` stands before the amount, or before the hours if it is unknown."""
    hours = f"{row.gpu_hours:,} GPU-hours"
    if row.usd is None:
        return f"{before}{hours}, unknown $"
    rest = f" ({row.unpriced_gpu_seconds / 3600:,.1f} of them unknown $)" if row.unpriced_gpu_seconds else ""
    return f"{hours}, {before}{dollars(row.usd)}{rest}"


def dollars(amount: Decimal) -> str:
    """With a thousands mark and cents."""
    return f"${amount:,.2f}"


def counted(count: int, one: str, many: str) -> str:
    """A count and its noun."""
    return f"{count:,} {one if count == 1 else many}"
