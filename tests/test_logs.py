"""The parts that logs are made of: rate, one line for each record, a bounded file."""

from __future__ import annotations

import io
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from msmon import logs
from msmon.logs import BoundedFile, OneLineFormatter, RateFilter, escaped


class Clock:
    """Stands in for the module ``time`` of the filter."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(written: io.StringIO) -> Iterator[logging.Logger]:
    """A logger with the filter and the formatter in front of ``written``."""
    handler = logging.StreamHandler(written)
    handler.addFilter(RateFilter())
    handler.setFormatter(OneLineFormatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("msmon.test_logs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)


def test_equal_lines_are_limited_and_those_left_out_are_counted(logger, written, clock) -> None:
    for number in range(100):
        logger.warning("refused: %d", number)
    assert len(written.getvalue().splitlines()) == logs.LINES
    clock.now_s += logs.INTERVAL_S + 1
    logger.warning("refused: %d", 100)
    assert written.getvalue().endswith("refused: 100 (95 more left out)\n")
    logger.warning("refused: %d", 101)
    assert written.getvalue().endswith("refused: 101\n")


def test_another_line_and_another_user_have_budgets_of_their_own(logger, written, clock) -> None:
    for _ in range(100):
        logger.warning("refused", extra={"owner": "uid 1000"})
    logger.warning("refused", extra={"owner": "uid 2000"})
    logger.warning("lost")
    assert len(written.getvalue().splitlines()) == logs.LINES + 2


def test_ordinary_news_are_limited_only_where_they_are_about_a_user(logger, written, clock) -> None:
    for _ in range(100):
        logger.info("stopping")
    assert len(written.getvalue().splitlines()) == 100
    for _ in range(100):
        logger.info("registered", extra={"owner": "uid 1000"})
    assert len(written.getvalue().splitlines()) == 100 + logs.LINES


def test_a_flood_of_sources_shares_one_budget(logger, written, clock) -> None:
    for number in range(3 * logs.MAX_BUDGETS):
        logger.warning("refused", extra={"owner": f"uid {number}"})
    assert len(written.getvalue().splitlines()) == logs.MAX_BUDGETS + logs.LINES
    clock.now_s += logs.INTERVAL_S + 1
    logger.warning("refused", extra={"owner": "uid 0"})
    logger.warning("refused", extra={"owner": "uid -1"})
    assert len(written.getvalue().splitlines()) == logs.MAX_BUDGETS + logs.LINES + 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("node\n2026-01-01 ERROR forged", r"node\n2026-01-01 ERROR forged"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u2028b\u202ec", r"a\u2028b\u202ec"),
        ("\udcff", r"\udcff"),
        ("Grüße, 世界", "Grüße, 世界"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_long_line_is_cut_with_a_count() -> None:
    assert escaped("x" * 60_000).endswith(
        f"... ({60_000 - logs.MAX_LINE_CHARACTERS} characters more)"
    )


def test_a_peer_can_not_begin_a_line_even_in_a_traceback(logger, written) -> None:
    try:
        raise ValueError("first\nWARNING: forged\rWARNING: forged")
    except ValueError:
        logger.exception("failed: %s", "host\nWARNING: forged")
    lines = written.getvalue().splitlines()
    assert lines[0] == r"ERROR: failed: host\nWARNING: forged"
    assert all(line.startswith("    ") for line in lines[1:])
    assert r"    WARNING: forged\rWARNING: forged" in lines


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_the_file_and_its_directory_are_made_at_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log"
    file = BoundedFile(path, 1000, 1, mode=0o640)
    assert not path.parent.exists()
    file.handle(record("a line"))
    assert path.read_text() == "a line\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_file_stays_bounded_and_the_newest_lines_are_kept(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "log", 200, 2)
    for number in range(100):
        file.handle(record(f"line {number}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 200
    assert (tmp_path / "log").read_text().endswith("line 99\n")


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = BoundedFile(path, 1000, 1)
    file.handle(record("before"))
    path.rename(tmp_path / "moved")
    file.handle(record("after"))
    assert path.read_text() == "after\n"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "log", 1000, 1)
    before = os.listdir("/proc/self/fd")
    file.handle(record("a line"))
    assert os.listdir("/proc/self/fd") == before


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.symlink_to(path.with_name("foreign"))


def put_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("put", [put_fifo, put_link, put_directory])
def test_only_a_regular_file_is_written_and_the_rest_is_counted(
    tmp_path: Path, put, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    put(path)
    file = BoundedFile(path, 1000, 1)
    file.handle(record("one"))
    file.handle(record("two"))
    assert file.unwritten == 2
    assert file.problem is not None
    assert not (tmp_path / "foreign").exists()
    path.rename(tmp_path / "away")
    file.handle(record("three"))
    assert path.read_text() == "three\n"
    assert (file.unwritten, file.problem) == (0, None)
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_counted(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    class OnFullDisk(BoundedFile):
        def _open(self) -> io.StringIO:
            return Full()

    file = OnFullDisk(tmp_path / "log", 1000, 1)
    file.handle(record("a line"))
    assert file.unwritten == 1
    assert "No space" in str(file.problem)
