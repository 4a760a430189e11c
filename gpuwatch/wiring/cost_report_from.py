"""`gpuwatch cost-report --from-sacct FILE`: a history from elsewhere, with nothing of ours installed anywhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, TextIO

import gpuwatch.importers
import gpuwatch.reports
from gpuwatch.clock import Clock, SystemClock
from gpuwatch.cost.job_history import SPLITS, Rate, make_job_report, month_cuts
from gpuwatch.errors import HistoryError, UsageError
from gpuwatch.importers import ImporterLeaf
from gpuwatch.model.job_history import KEYS, Asked
from gpuwatch.model.job_report import GpuPrice
from gpuwatch.model.money import Terms
from gpuwatch.prices.book import PriceBook
from gpuwatch.prices.gpus import offer_of
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat
from gpuwatch.wiring.cost_report import period, price_settings

_BAR_FROM_BYTES = 8 << 20  # less is read before a bar could be seen
_BEFORE_ALL_TIME_S = -(1 << 40)


def choices() -> dict[str, str]:
    """What may stand after `--from-`, and what to give it."""
    return {name: leaf.what for name, leaf in leaves(gpuwatch.importers, "IMPORTER", ImporterLeaf).items()}


def run(
    importer: str,
    file: str,
    *,
    by: str | None = None,
    since: str | None = None,
    until: str | None = None,
    last: str | None = None,
    month: str | None = None,
    form: str = "table",
    prices: Path | None = None,
    usd_per_gpu_hour: Sequence[str] = (),
    skus: Sequence[str] = (),
    provider: str = "",
    region: str = "",
    fleet_gpus: int | None = None,
    zone: str = "",
    delimiter: str = "",
    out: TextIO | None = None,
    clock: Clock | None = None,
) -> int:
    """Print the report; 0, also where there is nothing to report (it then says why). `file` may be `-`.

    Raises `GpuwatchError` for a file that is missing or no such history, words that do not fit, prices without a match.
    """
    now_unix_s = (clock or SystemClock()).unix_ns() // 10**9
    begin, end = (
        None if ns is None else ns // 10**9
        for ns in period(now_unix_s * 10**9, since=since, until=until, last=last, month=month)
    )
    if begin is not None and begin > now_unix_s:
        raise UsageError("the period lies in the future", next_step="name one that has begun")
    end = None if end is None else min(end, now_unix_s)
    split = _split(by or "state")
    form_leaf = _format(form)
    assert form_leaf.render_jobs is not None
    rates = rates_of(
        usd_per_gpu_hour, skus, provider, region, PriceBook.bundled(price_settings(prices) if prices else None)
    )
    keys = tuple(key for key in KEYS if key in split or (key == "partition" and any(rates)))
    cuts = {rate.from_unix_s for steps in rates.values() for rate in steps if rate.from_unix_s > 0}
    asked = Asked(
        keys=keys,
        since_unix_s=begin,
        until_unix_s=end,
        cuts_unix_s=tuple(sorted(cuts.union(month_cuts() if "month" in split else ()))),
        now_unix_s=now_unix_s,
        zone=zone,
        delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter),
    )
    leaf = leaves(gpuwatch.importers, "IMPORTER", ImporterLeaf)[importer]
    with _opened(file) as (stream, progress):
        history = leaf.read(stream, asked, progress)
    report = make_job_report(
        history,
        rates,
        by=split,
        keys=keys,
        made_unix_s=now_unix_s,
        since_unix_s=begin,
        until_unix_s=end,
        fleet_gpus=fleet_gpus,
    )
    (out if out is not None else sys.stdout).write(form_leaf.render_jobs(report))
    if form == "csv":  # rows only: the other formats say these themselves
        for sentence in filter(None, (report.empty_because, *report.said, *report.findings)):
            print(sentence, file=sys.stderr)
    return 0


def rates_of(
    usd_per_gpu_hour: Sequence[str], skus: Sequence[str], provider: str, region: str, book: PriceBook
) -> dict[str, list[Rate]]:
    """`3.40`, `h100=3.40`, `ND96asr_v4`, `a100=ND96asr_v4`: by partition, "" for all others. Raises `UsageError`."""
    rates: dict[str, list[Rate]] = {}
    others = any("=" in word for word in (*usd_per_gpu_hour, *skus))
    for word in usd_per_gpu_hour:
        partition, usd = _named(word)
        try:
            amount = Decimal(usd)
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            raise UsageError(
                f"--usd-per-gpu-hour {word!r} is no price", next_step="write 3.40, or for one partition h100=3.40"
            )
        price = GpuPrice(
            what=_where(partition, others), usd_per_gpu_hour=f"{amount:f}", kind="given", source="--usd-per-gpu-hour"
        )
        _put(rates, partition, [Rate(from_unix_s=_BEFORE_ALL_TIME_S, usd_per_gpu_hour=Fraction(amount), price=price)])
    for word in skus:
        partition, sku = _named(word)
        offer = offer_of(sku, provider, region)
        terms = Terms(provider=offer.provider, region=offer.region, sku=offer.sku, price_kind="ondemand")
        steps = []
        for from_unix_ns, price_of_node in book.steps(terms, partition):
            per_gpu = Fraction(price_of_node.usd_per_hour) / offer.gpus
            price = GpuPrice(
                what=f"{_where(partition, others)}, {offer.provider} {offer.region} {offer.sku}, "
                f"${price_of_node.usd_per_hour.normalize():f} for {offer.gpus} GPUs",
                usd_per_gpu_hour=f"{(Decimal(per_gpu.numerator) / per_gpu.denominator).normalize():f}",
                kind=price_of_node.kind,
                as_of=price_of_node.as_of,
                source=price_of_node.source,
                older_than_book=price_of_node.older_than_book,
            )
            steps.append(Rate(from_unix_s=from_unix_ns // 10**9, usd_per_gpu_hour=per_gpu, price=price))
        _put(rates, partition, steps)
    if (provider or region) and not skus:
        raise UsageError("--provider and --region name no machine", next_step="add --sku, for example --sku ND96asr_v4")
    return rates


def _put(rates: dict[str, list[Rate]], partition: str, steps: list[Rate]) -> None:
    if partition in rates:
        raise UsageError(f"{_where(partition)} is given two prices", next_step="keep one")
    rates[partition] = steps


def _named(word: str) -> tuple[str, str]:
    partition, is_there, value = word.partition("=")
    return (partition.strip(), value.strip()) if is_there else ("", word.strip())


def _where(partition: str, others: bool = True) -> str:
    return f"partition {partition}" if partition else "all other GPUs" if others else "all GPUs"


def _split(by: str) -> list[str]:
    keys = [key.strip().lower() for key in by.split(",") if key.strip()]
    if not 1 <= len(keys) <= 2 or len(set(keys)) != len(keys):
        raise UsageError(f"cannot split by {by!r}", next_step="name one key or two different ones: --by account,state")
    unknown = [key for key in keys if key not in SPLITS]
    if unknown:
        raise UsageError(
            f"a job history cannot be split by {', '.join(unknown)}", next_step=f"choose of {', '.join(SPLITS)}"
        )
    return keys


def _format(form: str) -> ReportFormat:
    formats = leaves(gpuwatch.reports, "REPORT", ReportFormat)
    fit = sorted(name for name, leaf in formats.items() if leaf.render_jobs is not None)
    if form not in fit:
        raise UsageError(f"a job history has no format {form!r}", next_step=f"choose of {', '.join(fit)}")
    return formats[form]


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, Callable[[int], None]]]:
    if file == "-":
        if sys.stdin.isatty():
            print("reading standard input; end it with Ctrl-D", file=sys.stderr)
        with _bar(None, lambda: 0) as progress:
            yield sys.stdin.buffer, progress
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise HistoryError(
                f"{file} cannot be read",
                why=error.strerror or str(error),
                next_step="name the dump, or - for standard input",
            ) from error
        yield stream, stack.enter_context(_bar(stream, stream.tell))


@contextmanager
def _bar(stream: io.BufferedReader | None, at: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for a large file, a count of rows for a pipe; nothing where nobody looks."""
    size = Path(stream.name).stat().st_size if stream is not None else None
    if not sys.stderr.isatty() or (size is not None and size < _BAR_FROM_BYTES):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[rows]:,} rows"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=size or None, rows=0)
        yield lambda rows: bar.update(task, completed=at(), rows=rows)
