"""`gpu[01-16]` means sixteen names, to us as to Slurm."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sdk.host_lists import MAX_NAMES, expand


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        pytest.param("gpu7", ["gpu7"], id="plain"),
        pytest.param("gpu[01-03]", ["gpu01", "gpu02", "gpu03"], id="padded"),
        pytest.param("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"], id="unpadded-grows"),
        pytest.param("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"], id="padded-to-the-end"),
        pytest.param("gpu[1,3,5-6]", ["gpu1", "gpu3", "gpu5", "gpu6"], id="list"),
        pytest.param("gpu[1, 3]", ["gpu1", "gpu3"], id="blanks-inside"),
        pytest.param("r[1-2]n[01,03]x", ["r1n01x", "r1n03x", "r2n01x", "r2n03x"], id="two-brackets-and-a-tail"),
        pytest.param("gpu[1-2]-ib0", ["gpu1-ib0", "gpu2-ib0"], id="suffix"),
        pytest.param("gpu[1-2],login1,a[7]", ["gpu1", "gpu2", "login1", "a7"], id="several"),
        pytest.param("[1-2]", ["1", "2"], id="numbers-alone"),
    ],
)
def test_names(listed: str, names: list[str]) -> None:
    assert expand(listed) == names


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("", "no list"),
        (" ", "no list"),
        ("gpu[1-", "no list"),
        ("gpu1]", "no list"),
        ("gpu[[1]]", "no list"),
        ("gpu1 gpu2", "no list"),
        ("gpu1,,gpu2", "no list"),
        (",gpu1", "no list"),
        ("gpu[]", "no number"),
        ("gpu[a-b]", "no number"),
        ("gpu[1-2-3]", "no number"),
        ("gpu[١-٣]", "no number"),
        (f"gpu[{'9' * 5000}]", "no number"),
        ("gpu[5-1]", "backwards"),
        ("gpu[0-999999]", "more than"),
        ("gpu[1-2000]n[1-2000]", "more than"),
        (f"gpu[{','.join(['1-199999'] * 5000)}]", "more than"),
        (",".join(["gpu[1-150000]"] * 2), "more than"),
    ],
)
def test_what_is_no_list_is_refused_soon(listed: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        expand(listed)
    assert len(str(caught.value)) < 300


NUMBERS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=3)


@st.composite
def parts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """One part of a list, and its names made another way. Without a tail, which Slurm does not know."""
    written, pieces = "", []
    for _ in range(draw(st.integers(1, 3))):
        stem = draw(st.from_regex(r"[a-z][a-z0-9-]{0,3}[a-z]", fullmatch=True))
        ranges, ends = [], []
        for first, more, width in draw(NUMBERS):
            begin = f"{first:0{width}d}"
            ranges.append(f"{begin}-{first + more}" if more else begin)
            ends += [f"{first + step:0{len(begin)}d}" for step in range(more + 1)]
        written += f"{stem}[{','.join(ranges)}]"
        pieces.append([stem + end for end in ends])
    if draw(st.booleans()):
        return written, ["".join(chosen) for chosen in product(*pieces)]
    plain = draw(st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True))
    return plain, [plain]


LISTS = st.lists(parts(), min_size=1, max_size=4)


@given(LISTS)
def test_a_list_means_the_names_of_its_parts_in_order(drawn: list[tuple[str, list[str]]]) -> None:
    assert expand(",".join(part for part, _ in drawn)) == [name for _, names in drawn for name in names]


@given(st.text(alphabet="gpu01,-[] x\n\0é", max_size=30))
def test_any_text_is_a_list_of_names_or_a_value_error(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert 0 < len(names) <= MAX_NAMES
    assert all(name and not set(name) & set(",[] \n") for name in names)
    assert expand(",".join(names)) == names


@pytest.mark.needs("scontrol")
def test_to_slurm_it_means_the_same(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=a\n")
    lists = [
        "gpu[09-12],login1",
        "gpu[1-02]",
        "gpu[1-2][1-2]",
        "[1-3]",
        "r[1-2]n[01,03]",
        "n[1,1]",
        "a-b[3],c.d",
        "n[098-101]",
    ]
    for listed in lists:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            env=os.environ | {"SLURM_CONF": str(conf)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expand(listed) == done.stdout.split()
