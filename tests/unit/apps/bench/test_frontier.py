"""The picture: seeds together, two files, and refusals before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.apps.bench.converge.frontier import check_target, draw, points, read_rows, rows_of
from shoal.base.errors import ShoalError


def _row(preset: str, gap: float, bits: float = 0.27, inner: str = "adamw") -> dict[str, object]:
    return {"preset": preset, "inner": inner, "gap": gap, "bits_per_param_step": bits, "loss": 1.0}


def test_rows_are_found_among_other_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    lines = [
        "progress",
        json.dumps(_row("diloco", 0.1)),
        '{"runs": 3}',
        json.dumps({"runs": [_row("ddp", 0.0)]}),
    ]
    file.write_text("\n".join(lines))
    assert [row.preset for row in read_rows([file])] == ["diloco", "ddp"]


def test_seeds_of_one_setting_are_one_point(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    rows = [_row("diloco", 0.10), _row("diloco", 0.14, 0.2701), _row("diloco", 0.02, 1.1), _row("auto", 0.01)]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = {(point.label, len(point.gaps)): point for point in points(read_rows([file]))}
    assert set(found) == {("diloco", 2), ("diloco", 1), ("auto", 1)}
    assert found["diloco", 2].mean == pytest.approx(12.0)


def test_the_picture_is_the_same_twice(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    rows = [_row("diloco", 0.10), _row("auto", -0.01, 0.07, "muon"), _row("sparseloco", 0.9, 0.02)]
    file.write_text(json.dumps({"runs": rows}))
    drawn = [draw(read_rows([file]), tmp_path / name) for name in ("one.png", "two.png")]
    assert [path.name for path in drawn[0]] == ["one.png", "one.svg"]
    assert [a.read_bytes() == b.read_bytes() for a, b in zip(*drawn, strict=True)] == [True, True]
    assert all(name in drawn[0][1].read_text() for name in ("diloco", "auto", "sparseloco", "Covenant-72B"))


@pytest.mark.parametrize(
    "target", ["plot.jpg", "nowhere/plot.png", "folder.png", "other.png", "/proc/plot.png"]
)
def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path, target: str) -> None:
    for folder in ("folder.png", "other.svg"):
        (tmp_path / folder).mkdir()
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        check_target(str(tmp_path / target))


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("nothing here\n")
    for file in ("empty", "missing"):
        with pytest.raises(ShoalError, match="SH-DISK-02"):
            read_rows([tmp_path / file])


def test_what_is_no_measurement_is_passed_over(tmp_path: Path) -> None:
    rows = [_row("none", 0.1, 0.0), _row("less", 0.1, -1.0), _row("far", 1e308), _row("more", 0.1, 1e308)]
    lines = [*map(json.dumps, rows), json.dumps(_row("diverged", float("nan"))), "[" * 100_000]
    lines += [json.dumps({**_row("diverged", 0.0), "gap": None}), json.dumps(_row(r"$\frac$", 0.1))]
    (tmp_path / "rows").write_text("\n".join(lines))
    found = read_rows([tmp_path / "rows"])
    assert [row.preset for row in found] == [r"$\frac$"]
    assert all(path.stat().st_size for path in draw(found, check_target(str(tmp_path / "plot.png"))))


def test_rows_that_all_diverged_make_no_picture(tmp_path: Path) -> None:
    found = rows_of([{**_row("diloco", 0.0), "gap": None}])
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        draw(found, tmp_path / "plot.png")


def test_one_row_that_diverged_does_not_hide_the_others() -> None:
    found = rows_of([_row("ddp", 0.1), {**_row("diloco", 0.0), "gap": None}])
    assert [row.preset for row in found] == ["ddp"]
