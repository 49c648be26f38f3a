"""``msmon convert`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msmon.commands.main import main

LINE = (
    '{"correlationId":7,"deviceId":0,"endNs":1790000000000000900,"kind":"Kernel",'
    '"name":"MatMul","startNs":1790000000000000100,"streamId":2,"type":"CUBE"}\n'
)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "msmonitor_42_20260101000000000_3.jsonl"
    path.write_text(LINE * 3 + LINE[:40])
    return path


def test_files_go_to_stdout_and_counts_to_stderr(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    assert main(["convert", str(exported), "--to", "perfetto", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "records: 3 Kernel" in printed.err
    assert "skipped damaged parts: 1" in printed.err
    events = json.loads(out.read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 3


def test_a_directory_in_and_the_current_directory_out(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert main(["convert", str(tmp_path), "--to", "db"]) == 0
    (made,) = work.iterdir()
    assert made.name.startswith("msmonitor_42_")
    assert made.name.endswith("_3.db")
    assert capsys.readouterr().out == f"{made.name}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing.db", "--to", "xlsx"], 2, "does not exist"),
        ([".", "--to", "xlsx"], 2, "no exported files"),
        (["notes.txt", "--to", "jsonl"], 1, "nothing could be read"),
        (["notes.txt", "--to", "pdf"], 2, "pdf"),
        (["notes.txt"], 2, "--to"),
        (["notes.txt", "--to", "db", "-o", "notes.txt"], 2, "--out"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: list[str], code: int, text: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("not an export\n")
    assert main(["convert", *arguments]) == code
    printed = capsys.readouterr()
    assert text in printed.err
    assert "Traceback" not in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_report_in_json_and_exit_code_1_where_a_file_was_unreadable(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "msmonitor_43_20260101000000000_4.jsonl").touch()
    out = tmp_path / "trace.json"
    assert main(["convert", str(tmp_path), "--to", "perfetto", "-o", str(out), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == [str(out)]
    assert report["records"] == {"Kernel": 3}
    assert "the file is empty" in report["problems"][0]


def test_records_without_times_are_told_and_the_exit_code_is_1(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = LINE.replace("1790000000000000900", "52871959").replace("1790000000000000100", "52871003")
    exported.write_text(raw + LINE * 3 + LINE.replace("1790000000000000900", str(2**64 - 1)))
    out = tmp_path / "trace.json"
    assert main(["convert", str(exported), "--to", "perfetto", "-o", str(out)]) == 1
    assert "left out, as their times are no times of a clock: 2" in capsys.readouterr().err
    events = json.loads(out.read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 3
    assert main(["convert", str(exported), "--to", "xlsx", "-o", str(tmp_path / "b.xlsx")]) == 0
    assert (
        "without a duration, as their times are no times of a clock: 2" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("to", "name"), [("perfetto", "x.json"), ("xlsx", "x.xlsx")])
def test_no_directory_is_made_for_a_file(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, name: str
) -> None:
    out = tmp_path / "nodir" / name
    assert main(["convert", str(exported), "--to", to, "-o", str(out)]) == 2
    assert f"there is no directory {out.parent}" in capsys.readouterr().err
    assert not out.parent.exists()


def test_a_single_workbook_gets_the_suffix_that_it_needs(exported: Path, tmp_path: Path) -> None:
    assert main(["convert", str(exported), "--to", "xlsx", "-o", str(tmp_path / "book")]) == 0
    assert (tmp_path / "book.xlsx").exists()
