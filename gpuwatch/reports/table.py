"""Plain aligned text for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from datetime import date, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal

from gpuwatch.model.job_report import GpuPrice, JobReport, JobRow
from gpuwatch.model.report import CostReport, PriceUsed, ReportRow
from gpuwatch.reports import ReportFormat

WIDTH = 100
_SHOWN = Decimal("0.001")  # of an hour
_KEY_WIDTH = 44  # of all keys together, before they are cut


def render(report: CostReport) -> str:
    """Title, rows, total, the sum line, figures, prices, findings."""
    lines = [_title(report), ""]
    if report.empty_because:
        return "\n".join([*lines, *_wrap(report.empty_because)]) + "\n"
    lines += _table(report)
    lines += ["", *_wrap(report.sum_line)]
    lines += _below(report)
    lines += _open_amounts(report)
    if report.figures:
        lines += [""]
        for figure in report.figures:
            lines += _wrap(figure.text, first=f"{_FIGURES.get(figure.name, figure.name):<13}", rest=" " * 13)
    lines += _prices(report)
    if report.findings:
        lines += ["", "Look at:"]
        for finding in report.findings:
            lines += _wrap(finding, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


_FIGURES = {
    "goodput": "Goodput",
    "waste": "Waste",
    "unknown": "Unknown",
    "ettr": "ETTR",
    "mtbf": "MTBF",
    "mttd": "MTTD",
    "mttr_run": "MTTR (run)",
    "mttr_node": "MTTR (node)",
}


def _title(report: CostReport) -> str:
    since = _moment(report.since_unix_ns) if report.since_unix_ns is not None else "the ledger's beginning"
    return f"Cost by {' and '.join(report.by)}, from {since} to {_moment(report.until_unix_ns)} UTC"


def _table(report: CostReport) -> list[str]:
    with_life = any(row.lifetime_usd is not None for row in report.rows)
    with_open = any(row.provisional_usd for row in report.rows)
    with_unpriced = bool(report.total.unpriced_node_hours)
    heads = [*report.by, "node-hours", "USD", "share"]
    heads += ["provisional"] * with_open + ["whole life"] * with_life + ["no price, h"] * with_unpriced
    times = _adding([row.node_hours for row in report.rows], report.total.node_hours)
    body = [
        _cells(row, list(row.keys), time, with_open, with_life, with_unpriced)
        for row, time in zip(report.rows, times, strict=True)
    ]
    last = ["total", *("" for _ in report.by[1:])]
    total_time = report.total.node_hours.quantize(_SHOWN, ROUND_HALF_UP)
    total = _cells(report.total, last, total_time, with_open, with_life, with_unpriced)
    keys = len(report.by)
    widths = [max(len(line[i]) for line in [heads, *body, total]) for i in range(len(heads))]
    for i in range(keys):
        widths[i] = min(widths[i], _KEY_WIDTH // keys)
    details = [f"  {row.detail}" if row.detail else "" for row in report.rows]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [_line(heads, widths, keys), rule]
    for cells, detail in zip(body, details, strict=True):
        line = _line(cells, widths, keys)
        lines.append(_cut(line + detail, WIDTH) if len(line) < WIDTH - 3 else line)
    return [*lines, rule, _line(total, widths, keys)]


def _adding(times: list[Decimal], total: Decimal) -> list[Decimal]:
    """Hours cut to what is shown, so that the shown ones add up to the shown total (largest remainder)."""
    shown = [time.quantize(_SHOWN, ROUND_FLOOR) for time in times]
    missing = int((total.quantize(_SHOWN, ROUND_HALF_UP) - sum(shown)) / _SHOWN)
    for index in sorted(range(len(times)), key=lambda i: (shown[i] - times[i], i))[: max(missing, 0)]:
        shown[index] += _SHOWN
    return shown


def _cells(
    row: ReportRow, keys: list[str], time: Decimal, with_open: bool, with_life: bool, with_unpriced: bool
) -> list[str]:
    no_price = bool(row.unpriced_node_hours) and row.unpriced_node_hours == row.node_hours and not row.usd
    share = "" if row.share_percent is None else f"{row.share_percent:.1f} %"
    cells = [*keys, f"{time:,.3f}", "unknown $" if no_price else f"{row.usd:,.2f}", share]
    if with_open:
        cells.append(f"{row.provisional_usd:,.2f}" if row.provisional_usd else "")
    if with_life:
        cells.append(f"{row.lifetime_usd:,.2f}" if row.lifetime_usd is not None else "")
    if with_unpriced:
        cells.append(f"{row.unpriced_node_hours:,.3f}" if row.unpriced_node_hours else "")
    return cells


def _line(cells: list[str], widths: list[int], keys: int) -> str:
    parts = [_cut(cell, width).ljust(width) for cell, width in zip(cells[:keys], widths[:keys], strict=True)]
    parts += [cell.rjust(width) for cell, width in zip(cells[keys:], widths[keys:], strict=True)]
    return "  ".join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _below(report: CostReport) -> list[str]:
    return [f"Below the total: {kind} {amount:,.2f} USD" for kind, amount in report.below.items()]


def _open_amounts(report: CostReport) -> list[str]:
    if not report.total.provisional_usd:
        return []
    return _wrap(
        f"{_dollars(report.total.provisional_usd)} of it is provisional: work since the last checkpoint, or still "
        "under way. It may move to another category; the total stays."
    )


def _prices(report: CostReport) -> list[str]:
    if not report.prices:
        return []
    lines = ["", "Prices (a whole machine an hour):"]
    for price in report.prices:
        lines += _wrap(_price(price), first="  ", rest="    ")
    return lines


def _price(price: PriceUsed) -> str:
    hours = f"{price.node_hours:,.3f} node-hours"
    if price.usd_per_hour is None:
        return f"{price.what}: no price known, unknown $ for {hours}"
    day = f" of {price.as_of}" if price.as_of else ""
    old = ", older than the price book" if price.older_than_book else ""
    usd = f"{price.usd_per_hour.normalize():f}"
    if len(usd.partition(".")[2]) < 2:
        usd = f"{price.usd_per_hour:.2f}"
    return f"{price.what}: ${usd} ({price.kind}{day}{old}) for {hours}; source: {price.source}"


def _dollars(amount: Decimal) -> str:
    return f"-${-amount:,.2f}" if amount < 0 else f"${amount:,.2f}"


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _moment(unix_ns: int) -> str:
    days, rest = divmod(unix_ns // 10**9, 24 * 3600)
    day = date(1970, 1, 1) + timedelta(days=days)
    return f"{day.isoformat()} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def render_jobs(report: JobReport) -> str:
    """Title, lines, total, what failed at most cost, prices, findings."""
    since, until = report.since_unix_ns, report.until_unix_ns
    span = f", from {_moment(since)} to {_moment(until)} UTC" if since is not None and until is not None else ""
    lines = [f"GPU time by {' and '.join(report.by)}{span} ({report.source})", ""]
    if report.empty_because:
        lines += _wrap(report.empty_because)
    else:
        if report.waste_line:
            lines += [*_wrap(report.waste_line), ""]
        lines += _job_table(report)
        lines += ["", *_wrap(report.sum_line)]
        for sentence in report.said:
            lines += ["", *_wrap(sentence)]
    if report.prices:
        lines += ["", "Prices (one GPU an hour):"]
        for price in report.prices:
            lines += _wrap(_gpu_price(price), first="  ", rest="    ")
    if report.findings:
        lines += ["", "Look at:"]
        for finding in report.findings:
            lines += _wrap(finding, first="  - ", rest="    ")
    return "\n".join(lines) + "\n"


def _job_table(report: JobReport) -> list[str]:
    with_unpriced = bool(report.total.unpriced_gpu_seconds) and report.total.usd is not None
    heads = [*report.by, "tries", "GPU-hours", "USD", "share"] + ["no price, h"] * with_unpriced
    body = [_job_cells(row, list(row.keys), with_unpriced) for row in report.rows]
    total = _job_cells(report.total, ["total", *("" for _ in report.by[1:])], with_unpriced)
    keys = len(report.by)
    widths = [max(len(line[i]) for line in [heads, *body, total]) for i in range(len(heads))]
    for i in range(keys):
        widths[i] = min(widths[i], _KEY_WIDTH // keys)
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [_line(heads, widths, keys), rule]
    for cells, row in zip(body, report.rows, strict=True):
        line = _line(cells, widths, keys)
        never = f"{row.never_started:,} never started" if row.never_started else ""
        shown = _cut(f"{line}  {row.detail}", WIDTH) if row.detail and len(line) < WIDTH - 3 else line
        fits = len(f"{shown}  {never}") <= WIDTH
        lines.append(f"{shown}  {never}" if never and fits else shown)
        if never and not fits:  # a number is never cut off
            lines.append(f"{'':{min(len(line), WIDTH - len(never) - 2)}}  {never}")
    return [*lines, rule, _line(total, widths, keys)]


def _job_cells(row: JobRow, keys: list[str], with_unpriced: bool) -> list[str]:
    usd = "unknown $" if row.usd is None else f"{row.usd:,.2f}"
    share = "" if row.share_percent is None else f"{row.share_percent:.1f} %"
    # Names come from a foreign file: what steers a terminal is not printed.
    keys = ["".join(mark if mark.isprintable() else "?" for mark in key) for key in keys]
    cells = [*keys, f"{row.tries:,}", f"{row.gpu_hours:,.3f}", usd, share]
    if with_unpriced:
        cells.append(f"{row.unpriced_gpu_seconds / 3600:,.3f}" if row.unpriced_gpu_seconds else "")
    return cells


def _gpu_price(price: GpuPrice) -> str:
    words = [
        price.kind,
        f"of {price.as_of}" if price.as_of else "",
        "older than the price book" * price.older_than_book,
    ]
    kind = ", ".join(word for word in words if word)
    return f"{price.what}: ${price.usd_per_gpu_hour}" + (f" ({kind})" if kind else "") + f"; source: {price.source}"


REPORT = ReportFormat(render=render, render_jobs=render_jobs, suffix=".txt", for_people=True)
