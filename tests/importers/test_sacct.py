"""Rows of sacct as they come in the field: what each is worth, what is left out, and that nothing is counted twice."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.errors import HistoryError, UsageError
from gpuwatch.importers.sacct import IMPORTER
from gpuwatch.model.job_history import Asked, JobHistory
from gpuwatch.sdk.slurm_dump import read_dump
from gpuwatch.sdk.slurm_fold import Fold
from gpuwatch.sdk.slurm_times import open_zone

NOW = 1_796_060_000  # 2026-11-30T17:33:20Z
DATA = Path(__file__).parent / "data"
HEADER = "JobID|JobIDRaw|User|Account|Partition|State|Submit|Start|End|ElapsedRaw|Suspended|AllocTRES"
GPUS8 = "billing=64,cpu=64,gres/gpu=8,mem=512G,node=1"


def row(
    job: str = "1001",
    raw: str = "",
    state: str = "COMPLETED",
    start: str = "2026-11-01T00:00:00",
    end: str = "2026-11-01T01:00:00",
    elapsed: str = "3600",
    suspended: str = "00:00:00",
    tres: str = GPUS8,
    submit: str = "2026-10-31T23:00:00",
    user: str = "ada",
    account: str = "llm",
    partition: str = "h100",
) -> str:
    cells = (job, raw or job.partition("_")[0], user, account, partition, state, submit, start, end, elapsed, suspended)
    return "|".join((*cells, tres))


def read(
    text: str | bytes,
    *,
    keys: tuple[str, ...] = (),
    zone: str = "UTC",
    delimiter: str = "",
    since: int | None = None,
    until: int | None = None,
    now: int = NOW,
    cuts: tuple[int, ...] = (),
) -> JobHistory:
    asked = Asked(
        keys=keys,
        zone=zone,
        delimiter=delimiter,
        since_unix_s=since,
        until_unix_s=until,
        now_unix_s=now,
        cuts_unix_s=cuts,
    )
    data = text if isinstance(text, bytes) else text.encode()
    return IMPORTER.read(io.BufferedReader(io.BytesIO(data)), asked, lambda rows: None)


def dump(*rows: str) -> str:
    return "\n".join((HEADER, *rows)) + "\n"


def gpu_seconds(history: JobHistory) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in history.sums:
        found[one.state] = found.get(one.state, 0) + one.gpu_seconds
    return found


def tries(history: JobHistory) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in history.sums:
        found[one.state] = found.get(one.state, 0) + one.tries
    return found


@pytest.mark.parametrize(
    ("file", "zone"),
    [("slurm_22_05.txt", "UTC"), ("slurm_22_05_new_york.txt", "America/New_York"), ("slurm_22_05.json", "UTC")],
)
def test_a_real_slurm(file: str, zone: str) -> None:
    history = read((DATA / file).read_bytes(), zone=zone)
    assert gpu_seconds(history) == {
        "COMPLETED": 8 * 5 + 3 * 3 + 4 * 4 * 1,
        "FAILED": 4 * 2,
        "REQUEUED": 24 * 3,
        "NODE_FAIL": 8 * 31,
        "TIMEOUT": 2 * 61,
        "CANCELLED": 4 * 191,  # six seconds of it suspended
        "PENDING": 0,
    }
    assert tries(history)["COMPLETED"] == 7  # an array of four, one of two parts, two more
    assert (history.broken_count, history.unknown_gpus_count, history.further_tries, history.gpuless_tries) == (
        0,
        0,
        1,
        1,
    )
    assert (history.begins_unix_s, history.ends_unix_s) == (1_796_056_925, 1_796_057_195)
    assert "ElapsedRaw" not in " ".join(history.notes)


def test_the_worked_example() -> None:
    history = read(
        dump(
            row("1", elapsed="36000", end="2026-11-01T10:00:00"),
            row("2", state="NODE_FAIL", elapsed="9000", end="2026-11-01T02:30:00", tres="cpu=8,gres/gpu=16,node=2"),
            row("3", state="FAILED", elapsed="1800", end="2026-11-01T00:30:00", tres="cpu=8,gres/gpu=4,node=1"),
            row("3.batch", "3.batch", state="FAILED", elapsed="1800", end="2026-11-01T00:30:00", tres="cpu=8,node=1"),
            row("4_[1-3]", "4", state="PENDING", start="Unknown", end="Unknown", elapsed="0", tres=""),
        )
    )
    assert {state: held / 3600 for state, held in gpu_seconds(history).items()} == {
        "COMPLETED": 80,
        "NODE_FAIL": 40,
        "FAILED": 2,
        "PENDING": 0,
    }
    assert tries(history)["PENDING"] == 3
    assert (history.steps, history.broken_count, history.rows) == (1, 0, 5)


@pytest.mark.parametrize(
    ("line", "state", "held_gpu_s"),
    [
        pytest.param(
            row(tres="cpu=8,gres/gpu=8,gres/gpu:a100=8"), "COMPLETED", 8 * 3600, id="plain-and-typed-are-the-same"
        ),
        pytest.param(row(tres="cpu=8,gres/gpu:a100=8"), "COMPLETED", 8 * 3600, id="typed-only"),
        pytest.param(row(tres="gres/gpu:a100=2,gres/gpu:h100=4"), "COMPLETED", 6 * 3600, id="two-types"),
        pytest.param(row(tres="GRES/GPU=8"), "COMPLETED", 8 * 3600, id="in-capitals"),
        pytest.param(row(tres="cpu=4,gres/gpumem=80G,gres/gpuutil=50,gres/shard=2"), "COMPLETED", 0, id="no-gpus"),
        pytest.param(row(tres="billing=4,cpu=4,mem=8G,node=1"), "COMPLETED", 0, id="cpu-job"),
        pytest.param(row(state="CANCELLED by 1000"), "CANCELLED", 8 * 3600, id="cancelled-by"),
        pytest.param(row(state="CANCELLED+"), "CANCELLED", 8 * 3600, id="cut-by-sacct"),
        pytest.param(row(state="OUT_OF_ME+"), "OUT_OF_MEMORY", 8 * 3600, id="a-cut-name"),
        pytest.param(row(state="EXPEDITING"), "EXPEDITING", 8 * 3600, id="a-state-nobody-knows"),
        pytest.param(
            row(state="CANCELLED by 7", start="2026-11-01T01:00:00", elapsed="0"),
            "CANCELLED",
            0,
            id="cancelled-before-start",
        ),
        pytest.param(row(state="CANCELLED by 7", start="None", elapsed="0", tres=""), "CANCELLED", 0, id="start-none"),
        pytest.param(row(elapsed="1800", suspended="00:30:00"), "COMPLETED", 8 * 3600, id="suspended-time-is-held"),
        pytest.param(row(elapsed="", suspended=""), "COMPLETED", 8 * 3600, id="no-elapsed"),
        pytest.param(row(end="Unknown"), "COMPLETED", 8 * 3600, id="end-unknown-elapsed-known"),
        pytest.param(row("1001_7", "1009"), "COMPLETED", 8 * 3600, id="a-task-of-an-array"),
        pytest.param(row(start="1793491200", end="1793494800"), "COMPLETED", 8 * 3600, id="times-in-unix-seconds"),
        pytest.param(
            row(start="2026-11-01T00:00:00+0100", end="2026-11-01T00:00:00+0000"),
            "COMPLETED",
            8 * 3600,
            id="with-an-offset",
        ),
        pytest.param(row(state="REVOKED", start="None", end="None", elapsed="0", tres=""), "REVOKED", 0, id="revoked"),
    ],
)
def test_one_row(line: str, state: str, held_gpu_s: int) -> None:
    history = read(dump(line))
    assert gpu_seconds(history) == {state: held_gpu_s}
    assert (history.broken_count, history.unknown_gpus_count) == (0, 0)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (row() + "|more", "13 fields, the header 12"),
        ("1001|1001|ada", "3 fields, the header 12"),
        (row(state=""), "the state is empty"),
        (row(state="CO&PLETED"), "the state reads 'CO&PLETED'"),
        (row(job="7\x1b[2J"), "the job id reads"),
        (row(start="yesterday"), "Start reads 'yesterday'"),
        (row(end="2026-13-01T00:00:00"), "End reads"),
        (row(end="2026-10-01T00:00:00"), "it ends before it starts"),
        (row(elapsed="1-02-03"), "no length of time"),
        (row(job="sacct: error: slurmdbd", raw="x"), "the job id reads"),
        ("\x00\x00\x00", ""),
    ],
)
def test_a_broken_row_is_named_and_the_rest_counts(line: str, why: str) -> None:
    history = read(dump(row("1"), line, row("2")))
    assert gpu_seconds(history) == {"COMPLETED": 2 * 8 * 3600}
    assert [(one.line, why in one.why) for one in history.broken] == ([(3, True)] if why else [])


def test_of_many_broken_rows_ten_are_named() -> None:
    history = read(dump(*["broken"] * 25, row()))
    assert [one.line for one in history.broken] == list(range(2, 12))
    assert history.broken_count == 25
    assert tries(history) == {"COMPLETED": 1}


@pytest.mark.parametrize(
    ("tres", "why"),
    [("", "empty"), ("1=64,2=512,4=1,1001=8", "numeric ids"), ("cpu=4,gres/gpu=many", "a count of GPUs reads 'many'")],
)
def test_gpus_that_are_not_known_are_listed_and_never_taken_as_none(tres: str, why: str) -> None:
    history = read(dump(row("1"), row("77", tres=tres)))
    assert gpu_seconds(history) == {"COMPLETED": 8 * 3600}
    assert history.unknown_gpus[0].line == 3
    assert "job 77" in history.unknown_gpus[0].why
    assert why in history.unknown_gpus[0].why
    assert (history.unknown_gpus_count, history.unknown_gpus_job_seconds, history.gpuless_tries) == (1, 3600, 0)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:8", 8),
        ("gpu:a100:4(S:0-1),gpu:h100:2", 6),
        ("gpu:8,gpu:a100:8", 8),
        ("gpu:tesla", 1),
        ("craynetwork:1", 0),
        ("", 0),
    ],
)
def test_alloc_gres_of_older_slurm(gres: str, gpus: int) -> None:
    text = f"JobID|State|Start|End|AllocGRES\n7|COMPLETED|2026-11-01T00:00:00|2026-11-01T01:00:00|{gres}\n"
    assert gpu_seconds(read(text)) == {"COMPLETED": gpus * 3600}


def test_what_was_asked_for_is_not_what_was_allocated() -> None:
    text = f"{HEADER}|ReqTRES\n{row(tres='cpu=8,node=1')}|cpu=8,gres/gpu=8,node=1\n"
    assert gpu_seconds(read(text)) == {"COMPLETED": 0}


def test_tries_of_a_requeued_job_count_each_and_a_repeated_row_once() -> None:
    first = row(state="NODE_FAIL")
    second = row(submit="2026-11-01T01:00:00", start="2026-11-01T02:00:00", end="2026-11-01T04:00:00", elapsed="7200")
    history = read(dump(first, second, first, HEADER, second))
    assert gpu_seconds(history) == {"NODE_FAIL": 8 * 3600, "COMPLETED": 8 * 7200}
    assert (history.repeated, history.further_tries) == (2, 1)


def test_a_resized_job_is_its_pieces_in_the_state_of_its_last() -> None:
    piece = row(state="RESIZING", tres="gres/gpu=16")
    last = row(state="TIMEOUT", start="2026-11-01T01:00:00", end="2026-11-01T02:00:00")
    history = read(dump(piece, last))
    assert gpu_seconds(history) == {"TIMEOUT": 16 * 3600 + 8 * 3600}
    assert tries(history) == {"TIMEOUT": 1}


def test_parts_of_a_heterogeneous_job_add_up_to_one_job() -> None:
    history = read(dump(row("123+0", "123"), row("123+1", "124", tres="gres/gpu=4"), row("123+0.batch", "123.batch")))
    assert gpu_seconds(history) == {"COMPLETED": 12 * 3600}
    assert tries(history) == {"COMPLETED": 1}


@pytest.mark.parametrize(
    ("job", "count"),
    [("9_[1-3]", 3), ("9_[1,5,7-9%2]", 5), ("9_[0-10:5]", 3), ("9_[4]", 1), ("9_[1-4,...]", 4), ("9", 1)],
)
def test_tasks_that_wait(job: str, count: int) -> None:
    history = read(dump(row(job, "9", state="PENDING", start="Unknown", end="Unknown", elapsed="0", tres="")))
    assert (tries(history), gpu_seconds(history)) == ({"PENDING": count}, {"PENDING": 0})


@pytest.mark.parametrize(
    ("state", "start", "end", "elapsed", "tres", "never"),
    [
        ("PENDING", "Unknown", "Unknown", "0", "", 1),
        ("CANCELLED by 5", "None", "2026-11-30T11:00:00", "0", "", 1),
        ("CANCELLED by 5", "2026-11-30T11:00:00", "2026-11-30T11:00:00", "0", "", 1),  # the end given as the start
        ("DEADLINE", "Unknown", "2026-11-30T11:00:00", "0", "", 1),
        ("CANCELLED by 5", "2026-11-30T10:00:00", "2026-11-30T11:00:00", "3600", "gres/gpu=8", 0),
        ("FAILED", "2026-11-30T11:00:00", "2026-11-30T11:00:00", "0", "gres/gpu=8", 0),
        ("COMPLETED", "Unknown", "2026-11-30T11:00:00", "0", "", 0),  # its start is lost
    ],
)
def test_what_never_started_is_told_apart(
    state: str, start: str, end: str, elapsed: str, tres: str, never: int
) -> None:
    text = dump(row("9", "9", state=state, start=start, end=end, elapsed=elapsed, tres=tres))
    for history in (read(text), read(text + text)):
        assert [(one.tries, one.never_started) for one in history.sums] == [(1, never)]


def test_node_lists_with_brackets_and_delimiters_in_the_one_free_text_do_no_harm() -> None:
    line = f"{row()}|gpu[001-003,007]|train | eval"
    history = read(f"{HEADER}|NodeList|JobName\n{line}\n")
    assert (gpu_seconds(history), history.broken_count) == ({"COMPLETED": 8 * 3600}, 0)


# --- running jobs, periods, months


def test_a_running_job_counts_up_to_the_moment_that_the_dump_saw() -> None:
    running = row(state="RUNNING", end="Unknown", elapsed="7200")
    history = read(dump(running))
    assert gpu_seconds(history) == {"RUNNING": 8 * 7200}  # not the month that has passed since
    other = row("2", state="RUNNING", start="2026-11-01T01:00:00", end="Unknown", elapsed="")
    assert gpu_seconds(read(dump(running, other))) == {"RUNNING": 8 * 7200 + 8 * 3600}


def test_a_running_job_counts_up_to_now_if_the_dump_does_not_say_when_it_was_made() -> None:
    now = 1_793_491_200 + 600
    history = read(dump(row(state="RUNNING", end="Unknown", elapsed="")), now=now)
    assert gpu_seconds(history) == {"RUNNING": 8 * 600}
    assert "up to now" in " ".join(history.notes)


def test_an_end_replaces_still_running_in_either_order() -> None:
    running = row(state="RUNNING", end="Unknown", elapsed="60")
    for rows in ((running, row()), (row(), running)):
        history = read(dump(*rows))
        assert (gpu_seconds(history), tries(history)) == ({"COMPLETED": 8 * 3600}, {"COMPLETED": 1})


def test_a_record_that_runs_for_ever_is_doubted() -> None:
    old = row(state="RUNNING", start="2026-01-01T00:00:00", end="Unknown", elapsed=str(300 * 86_400))
    assert "runawayjobs" in " ".join(read(dump(old)).notes)


@pytest.mark.parametrize(
    ("since", "until", "held_s", "outside"),
    [
        (None, None, 3600, 0),
        (0, 3600, 3600, 0),
        (600, 1200, 600, 0),
        (1800, None, 1800, 0),
        (None, 60, 60, 0),
        (3600, 7200, 0, 1),
        (-60, 0, 0, 1),
    ],
)
def test_time_is_cut_to_the_period(since: int | None, until: int | None, held_s: int, outside: int) -> None:
    base = 1_793_491_200
    for short in (row(), row(suspended="00:00:01")):  # the second goes the long way
        history = read(
            dump(short), since=None if since is None else base + since, until=None if until is None else base + until
        )
        assert sum(gpu_seconds(history).values()) == 8 * held_s
        assert (history.outside, sum(tries(history).values())) == (outside, 1 - outside)


def test_sums_are_kept_apart_at_cuts() -> None:
    cut = 1_793_491_200 + 1000
    history = read(dump(row()), cuts=(cut,))
    assert sorted((one.begins_unix_s, one.gpu_seconds, one.tries) for one in history.sums) == [
        (0, 8000, 1),
        (cut, 8 * 2600, 0),
    ]


# --- time zones


@pytest.mark.parametrize(
    ("start", "end", "elapsed", "held_s"),
    [
        pytest.param("2026-10-31T12:00:00", "2026-11-01T12:00:00", "90000", 90_000, id="a-day-of-25-hours"),
        pytest.param("2026-03-07T12:00:00", "2026-03-08T12:00:00", "82800", 82_800, id="a-day-of-23-hours"),
        pytest.param("2026-11-01T00:30:00", "2026-11-01T01:30:00", "3600", 3600, id="ends-in-the-first-of-the-hours"),
        pytest.param("2026-11-01T00:30:00", "2026-11-01T01:30:00", "7200", 7200, id="ends-in-the-second"),
        pytest.param("2026-11-01T01:45:00", "2026-11-01T01:15:00", "1800", 1800, id="seems-to-go-backwards"),
        pytest.param("2026-11-01T01:30:00", "2026-11-01T03:00:00", "5400", 5400, id="begins-in-the-second"),
    ],
)
def test_clocks_that_change(start: str, end: str, elapsed: str, held_s: int) -> None:
    history = read(dump(row(start=start, end=end, elapsed=elapsed)), zone="America/New_York")
    assert gpu_seconds(history) == {"COMPLETED": 8 * held_s}
    assert "ElapsedRaw" not in " ".join(history.notes)


def test_a_wrong_zone_is_noticed_where_the_clocks_changed() -> None:
    line = row(start="2026-10-31T12:00:00", end="2026-11-01T12:00:00", elapsed="90000")
    assert "--tz" in " ".join(note for note in read(dump(line)).notes if "ElapsedRaw" in note)


def test_the_zone_of_this_machine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert "Asia/Tokyo" in " ".join(read(dump(row()), zone="").notes)
    assert read(dump(row()), zone="").begins_unix_s == 1_793_491_200 - 9 * 3600
    monkeypatch.delenv("TZ")
    assert os.environ.get("TZ") is None
    assert read(dump(row()), zone="").rows == 1


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "../../etc/passwd", "/etc/passwd"])
def test_a_zone_that_is_not_known(zone: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        read(dump(row()), zone=zone)


# --- files


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: "\ufeff" + text, id="a-mark-at-the-front"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="crlf"),
        pytest.param(lambda text: text.rstrip("\n"), id="no-last-newline"),
        pytest.param(lambda text: text.replace("|", ";"), id="semicolons"),
        pytest.param(lambda text: text.replace("|", "\t"), id="tabs"),
        pytest.param(lambda text: text.replace("\n", "|\n"), id="parsable-with-a-last-delimiter"),
        pytest.param(lambda text: "sacct: warning: slow\n\n" + text, id="words-before-the-header"),
        pytest.param(lambda text: text.replace("\n", "\n\n"), id="empty-lines"),
        pytest.param(
            lambda text: "".join(
                ",".join(f'"{cell}"' for cell in line.split("|")) + "\n" for line in text.splitlines()
            ),
            id="quoted-commas",
        ),
        pytest.param(
            lambda text: "".join(
                "|".join(f'"{cell}"' for cell in line.split("|")) + "\n" for line in text.splitlines()
            ),
            id="quoted-bars",
        ),
        pytest.param(
            lambda text: "".join(
                ",".join(f'"{cell}"' if "," in cell else cell for cell in line.split("|")) + "\n"
                for line in text.splitlines()
            ),
            id="commas-quoted-where-needed",
        ),
    ],
)
def test_forms_of_the_same_dump(change: Callable[[str], str]) -> None:
    text = dump(row("1"), row("2", state="FAILED"), row("3.batch"))
    history = read(change(text))
    assert gpu_seconds(history) == {"COMPLETED": 8 * 3600, "FAILED": 8 * 3600}
    assert (history.broken_count, history.steps) == (0, 1)


def test_utf_16_of_a_windows_shell() -> None:
    assert gpu_seconds(read(dump(row()).encode("utf-16"))) == {"COMPLETED": 8 * 3600}


def test_any_delimiter_that_is_named() -> None:
    text = dump(row()).replace("|", "@@")
    assert gpu_seconds(read(text, delimiter="@@")) == {"COMPLETED": 8 * 3600}
    with pytest.raises(HistoryError, match="no header"):
        read(text)


def test_bytes_that_are_no_text_spoil_their_row_only() -> None:
    history = read(dump(row(user="ada"), row("2")).encode().replace(b"ada", b"\xff\xfe", 1), keys=("user",))
    assert len(history.sums) == 2
    assert history.broken_count == 0


@pytest.mark.parametrize(
    ("text", "what", "next_step"),
    [
        ("", "is empty", "--parsable2"),
        ("\n\n", "is empty", "--parsable2"),
        (row() + "\n" + row("2"), "no header", "--noheader"),
        ("hello\nworld\n", "no header", "--noheader"),
        ("JobID           State    Elapsed\n------- ------ -----\n", "for people", "--parsable2"),
        (
            "JobID|State|User\n1|COMPLETED|ada\n",
            "no column Start, no End or ElapsedRaw or Elapsed, no AllocTRES",
            "--format",
        ),
        (b"\x1f\x8b\x08\x00", "packed", "zcat"),
        ("{not json", "no JSON", "sacct"),
        ("[1, 2]", "no JSON", "sacct"),
        ("{}", "no list", "--json"),
        ("x" * (17 << 20), "longer than", "--parsable2"),
    ],
)
def test_what_is_no_dump_says_what_to_do(text: str | bytes, what: str, next_step: str) -> None:
    with pytest.raises(HistoryError, match=what) as caught:
        read(text)
    assert next_step in caught.value.next_step


def test_a_header_alone_is_an_answer() -> None:
    history = read(HEADER + "\n")
    assert (history.sums, history.rows) == ((), 0)


def test_a_second_header_in_the_middle_may_have_another_order() -> None:
    order = [11, 5, 7, 8, 0, 1, 2, 3, 4, 6, 9, 10]
    other = ["|".join(line.split("|")[i] for i in order) for line in (HEADER, row("2", state="FAILED"))]
    history = read("\n".join((HEADER, row("1"), *other)))
    assert gpu_seconds(history) == {"COMPLETED": 8 * 3600, "FAILED": 8 * 3600}


# --- properties

CELLS = HEADER.split("|")
ROWS = st.lists(
    st.builds(
        lambda number, held, state, gpus, suspended: row(
            str(number),
            state=state,
            end=f"2026-11-0{1 + held // 86_400}T{held // 3600 % 24:02d}:{held // 60 % 60:02d}:{held % 60:02d}",
            elapsed=str(held - min(suspended, held)),
            suspended=f"00:00:{min(suspended, held):02d}",
            tres=f"cpu=8,gres/gpu={gpus},node=1",
            user=f"u{number % 3}",
        ),
        number=st.integers(1, 2000),
        held=st.integers(0, 6 * 86_400),
        state=st.sampled_from(["COMPLETED", "FAILED", "CANCELLED by 5", "TIMEOUT", "NEW_STATE", "REQUEUED"]),
        gpus=st.integers(0, 64),
        suspended=st.sampled_from([0, 0, 5]),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(rows=ROWS, order=st.permutations(range(len(CELLS))), delimiter=st.sampled_from(["|", ";", "\t", "^"]))
def test_the_order_of_columns_never_matters(rows: list[str], order: list[int], delimiter: str) -> None:
    lines = [delimiter.join(line.split("|")[i] for i in order) for line in (HEADER, *rows)]
    one, other = read(dump(*rows), keys=("user",)), read("\n".join(lines), keys=("user",))
    assert sorted(one.sums, key=repr) == sorted(other.sums, key=repr)
    assert one.repeated == other.repeated


@settings(deadline=None)
@given(rows=ROWS, at=st.integers(0, 20))
def test_a_dump_in_two_parts_that_overlap_is_the_same_dump(rows: list[str], at: int) -> None:
    whole = read(dump(*rows))
    parts = read(dump(*rows[: at + 2]) + dump(*rows[at:]))
    assert sorted(whole.sums, key=repr) == sorted(parts.sums, key=repr)


@settings(deadline=None)
@given(rows=ROWS, cut_s=st.lists(st.integers(1, 6 * 86_400), max_size=3))
def test_cuts_move_no_time(rows: list[str], cut_s: list[int]) -> None:
    whole, cut = read(dump(*rows)), read(dump(*rows), cuts=tuple(1_793_491_200 + s for s in cut_s))
    assert (gpu_seconds(whole), tries(whole)) == (gpu_seconds(cut), tries(cut))


@settings(deadline=None)
@given(held=st.integers(2, 80_000), at=st.integers(1, 80_000), gpus=st.integers(1, 64))
def test_a_job_cut_into_two_records_holds_what_the_whole_held(held: int, at: int, gpus: int) -> None:
    def stamp(second: int) -> str:
        return f"2026-11-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"

    at, tres = min(at, held - 1), f"gres/gpu={gpus}"
    whole = row(end=stamp(held), elapsed=str(held), tres=tres)
    first = row(state="RESIZING", end=stamp(at), elapsed=str(at), tres=tres)
    second = row(start=stamp(at), end=stamp(held), elapsed=str(held - at), tres=tres)
    assert gpu_seconds(read(dump(first, second))) == gpu_seconds(read(dump(whole)))


@settings(deadline=None)
@given(
    rows=ROWS,
    zone=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"]),
    since=st.sampled_from([-90_000, 0, 1, 9000, 20_000]),
    until=st.sampled_from([30_000, 100_000, 900_000]),
)
def test_the_short_cut_changes_nothing(rows: list[str], zone: str, since: int, until: int) -> None:
    def fold(short_cut: bool) -> JobHistory:
        asked = Asked(
            now_unix_s=NOW,
            keys=("user", "partition"),
            since_unix_s=1_793_491_200 + since,
            until_unix_s=1_793_491_200 + until,
        )
        own = Fold(asked)
        text = io.StringIO(dump(*rows))
        read_dump(text.read, own, open_zone(zone)[0], lambda _: None, short_cut=short_cut)
        return own.finish()

    short, long = fold(True), fold(False)
    assert sorted(short.sums, key=repr) == sorted(long.sums, key=repr)
    assert (short.begins_unix_s, short.ends_unix_s, short.repeated, short.outside, short.gpuless_tries) == (
        long.begins_unix_s,
        long.ends_unix_s,
        long.repeated,
        long.outside,
        long.gpuless_tries,
    )
