"""JSON lines: content, rotation, continuation after a crash, limits."""

from __future__ import annotations

import base64
import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.daemon.outputs.delivery import Commit
from msmon.daemon.outputs.stored_progress import MAX_SESSION_BYTES
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.markers import MarkerPairing
from msmon.sessions import Gap, SessionEnd
from msmon.sinks.base import CommitFailed, Progress
from msmon.sinks.file_names import create_session_file
from msmon.sinks.jsonl.limits import limits_in_force
from msmon.sinks.jsonl.sink import JsonlPerKindSink, JsonlSink

END = SessionEnd(1_790_000_100_000_000_000, "stop")


def strict(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    parsed: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return parsed


def read(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("msmonitor_*.jsonl"))
    return [strict(text) for path in paths for text in path.read_text().splitlines()]


def write(sink: JsonlSink, session: Any, *batches: Batch) -> None:
    sink.open_session(session)
    for seq, batch in enumerate(batches, 2):
        sink.write_records(session.session_id, seq, batch)
    sink.close_session(session.session_id, len(batches) + 2, END)
    sink.commit()


def test_kernel_lines_have_the_known_keys_in_alphabetical_order(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    batch = kernels(300)
    write(JsonlSink(), session(tmp_path, export_type="Jsonl"), batch)
    (path,) = tmp_path.iterdir()
    first = path.read_text().splitlines()[0]
    row = batch.records[0]
    assert first == (
        f'{{"correlationId":5,"deviceId":0,"endNs":{row["end_ns"]},"kind":"Kernel",'
        f'"name":"{batch.text("name")[0]}","startNs":{row["start_ns"]},'
        f'"streamId":{row["stream_id"]},"type":"{batch.text("type")[0]}"}}'
    )
    *kernel_lines, last = read(tmp_path)
    assert [item["startNs"] for item in kernel_lines] == batch.records["start_ns"].tolist()
    assert last == {
        "kind": "rank_device_map", "rank": 0, "device": [0], "session": "session-0",
        "host": "host-a", "startNs": 1_790_000_000_000_000_000, "endNs": END.end_ns,
    }  # fmt: skip


def test_every_kind_has_lines(
    tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kinds = [kind for kind in ActivityKind if kind != ActivityKind.Marker]
    write(JsonlSink(), session(tmp_path), *(batch(kind, [{}]) for kind in kinds))
    found = read(tmp_path)[:-1]
    assert [item["kind"] for item in found] == [kind.name for kind in kinds]
    communication = next(item for item in found if item["kind"] == "Communication")
    assert sorted(communication) == list(communication)
    assert communication["dataType"] == "INT8"


def test_values_that_json_lacks_and_unknown_types(
    tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    write(
        JsonlSink(),
        session(tmp_path),
        batch(ActivityKind.Hccl, [{"bandwidth_gb_per_s": math.nan}, {"bandwidth_gb_per_s": 2.5}]),
        batch(ActivityKind.Communication, [{"data_type": 200, "count": 2**64 - 1}]),
        batch(ActivityKind.Kernel, [{"name": 'q"\\\n\x01é', "type": "\udcff"}]),
    )
    not_finite, finite, communication, kernel, _ = read(tmp_path)
    assert (not_finite["bandWidth"], finite["bandWidth"]) == (None, 2.5)
    assert (communication["dataType"], communication["count"]) == ("INVALID_TYPE", 2**64 - 1)
    assert (kernel["name"], kernel["type"]) == ('q"\\\n\x01é', "\\xff")


def test_marker_lines_of_host_and_device(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any]
) -> None:
    write(JsonlSink(), session(tmp_path, rank=1), job_rank(1, 4, 0).step(3)[0])
    host, *_, device, last = (item for item in read(tmp_path) if item["kind"] != "gap")
    assert host["sourceKind"] == "Host"
    assert (host["name"], host["domain"], host["processId"], host["threadId"]) == (
        "step 3",
        "default",
        4001,
        7,
    )
    assert (device["sourceKind"], device["deviceId"], device["streamId"]) == ("Device", 1, 3)
    assert last["device"] == [1]


def test_rotation_gives_full_files_with_unique_names(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    batch = kernels(1050)
    write(JsonlSink(), session(tmp_path, jsonl_rotate_lines=100), batch)
    paths = sorted(tmp_path.glob("*.jsonl"))
    counts = [len(path.read_text().splitlines()) for path in paths]
    assert counts == [100] * 10 + [51]
    assert [item["correlationId"] for item in read(tmp_path)[:-1]] == list(range(5, 1055))
    assert len(list(tmp_path.iterdir())) == len(paths)


def test_clean_up_deletes_only_files_of_the_session(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    foreign = tmp_path / "msmonitor_4000_20200101000000000_0.jsonl"
    foreign.write_text("{}\n")
    sink = JsonlSink()
    started = session(tmp_path, jsonl_rotate_lines=100, jsonl_rotate_files=2)
    sink.open_session(started)
    sink.write_records("session-0", 2, kernels(450))
    for path in sorted(tmp_path.glob("*.jsonl"))[1:-1]:
        path.unlink()  # somebody else tidies up too
    sink.write_records("session-0", 3, kernels(450))
    sink.close_session("session-0", 4, END)
    sink.commit()
    assert foreign.exists()
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_after_a_crash_nothing_is_torn_twice_or_lost(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = JsonlSink(), JsonlSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, kernels(10, seed=1))
    first.commit()
    first.write_records("session-0", 3, kernels(10, seed=2))
    with open(path, "a") as torn:
        torn.write('{"correlationId":')
    first.close()
    resumed = second.open_session(session(tmp_path), kept)
    assert resumed.written_seq == 2
    assert resumed.files != (path,)
    second.write_records("session-0", 3, kernels(10, seed=2))
    second.close_session("session-0", 4, END)
    second.commit()
    expected = [*kernels(10, seed=1).records["start_ns"], *kernels(10, seed=2).records["start_ns"]]
    assert [item["startNs"] for item in read(tmp_path)[:-1]] == expected
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}


def test_an_end_that_the_daemon_forgot_in_a_crash_can_be_told_again(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = JsonlSink(), JsonlSink()
    first.open_session(session(tmp_path), kept)
    first.write_records("session-0", 2, kernels(10))
    first.close_session("session-0", 3, END)
    first.commit()
    before = read(tmp_path)
    assert second.open_session(session(tmp_path), kept).written_seq == 3
    second.close_session("session-0", 3, END)
    second.commit()
    assert read(tmp_path) == before
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}


def test_a_lost_session_that_comes_back_goes_on_in_a_new_file(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    sink = JsonlSink()
    sink.open_session(session(tmp_path), kept)
    sink.write_records("session-0", 2, kernels(10, seed=1))
    sink.commit()
    sink.close_session("session-0", 2, SessionEnd(END.end_ns, "lost"))
    sink.commit()
    assert sink.open_session(session(tmp_path), kept).written_seq == 2
    sink.write_records("session-0", 3, kernels(10, seed=2))
    sink.close_session("session-0", 4, END)
    sink.commit()
    kinds = [item["kind"] for item in read(tmp_path)]
    assert kinds == [*["Kernel"] * 10, "rank_device_map"] * 2
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}


def test_a_complete_file_outlives_a_session_that_was_opened_again_and_got_nothing(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    """The process was silent for a moment after its end, and then the daemon was killed."""
    kept = Progress()
    first = JsonlSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, kernels(10))
    first.close_session("session-0", 3, END)
    first.commit()
    before = Path(path).read_bytes()
    first.open_session(session(tmp_path), kept)
    first.pass_over("session-0", 4)
    first.commit()
    for _ in range(2):
        following = JsonlSink()
        following.open_session(session(tmp_path), Progress(kept.value))
        following.close()
    assert before
    assert Path(path).read_bytes() == before


def test_a_clock_set_back_costs_no_time(tmp_path: Path, session: Callable[..., Any]) -> None:
    day_later = create_session_file(session(tmp_path), "jsonl", now_ns=lambda: 10**18 + 10**14)
    digits = day_later.name.split("_")[2]
    path = create_session_file(session(tmp_path), "jsonl", digits, now_ns=lambda: 10**18)
    assert int(path.name.split("_")[2]) == int(digits) + 1


def test_a_write_that_fails_half_way_is_undone_and_repeated(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    sink = JsonlSink()
    sink.open_session(session(tmp_path), kept)
    sink.write_records("session-0", 2, kernels(50, seed=1))
    sink.commit()
    sink.write_records("session-0", 3, kernels(10, seed=3))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard_limit))
    try:
        with pytest.raises(OSError, match="too large"):
            sink.write_records("session-0", 4, kernels(500, seed=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    with pytest.raises(CommitFailed):
        sink.commit()  # for other sessions: of this one a part of a message is written
    assert sink.open_session(session(tmp_path), kept).written_seq == 2
    sink.write_records("session-0", 3, kernels(500, seed=2))
    sink.close_session("session-0", 4, END)
    sink.commit()
    expected = [*kernels(50, seed=1).records["start_ns"], *kernels(500, seed=2).records["start_ns"]]
    assert [item["startNs"] for item in read(tmp_path)[:-1]] == expected


def test_files_are_told_though_the_commit_of_another_session_fails(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    sink = JsonlSink()
    broken = session(tmp_path / "broken")
    healthy = session(tmp_path / "healthy", 1, jsonl_rotate_lines=300)
    for opened in (broken, healthy):
        Path(opened.settings.log_file).mkdir()
        sink.open_session(opened)
        sink.write_records(opened.session_id, 2, kernels(500))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard_limit))
    try:
        with pytest.raises(OSError, match="too large"):
            sink.write_records(broken.session_id, 3, kernels(500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    told = Commit().apply(sink)
    assert set(told.failed) == {broken.session_id}
    paths = sorted((tmp_path / "healthy").iterdir())
    assert len(paths) == 2
    assert told.files == {healthy.session_id: tuple(map(str, paths))}
    sink.close()


def markers(flag: int, numbers: range, time_ns: int) -> Batch:
    records = np.zeros(len(numbers), DTYPES[ActivityKind.Marker])
    records["kind"], records["flag"] = ActivityKind.Marker, flag
    records["source_kind"] = SourceKind.HOST
    records["timestamp_ns"], records["id"] = time_ns + np.arange(len(numbers)), numbers
    names = ("", *(f"decode request {number} of the server" for number in numbers))
    if flag == MarkerFlag.START:
        records["name"] = 1 + np.arange(len(numbers))
    return Batch(ActivityKind.Marker, records, names)


def test_many_open_ranges_fit_the_progress_and_go_on_after_a_crash(
    tmp_path: Path, session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = JsonlSink(), JsonlSink()
    first.open_session(session(tmp_path), kept)
    for seq, begin in enumerate(range(0, 60_000, 5000), 2):
        batch = markers(MarkerFlag.START, range(begin, begin + 5000), 10**6 + begin)
        first.write_records("session-0", seq, batch)
    first.commit()
    assert len(kept.value) < MAX_SESSION_BYTES / 3
    first.close()
    second.open_session(session(tmp_path), kept)
    second.write_records("session-0", 50, markers(MarkerFlag.END, range(60_000), 10**8))
    second.close_session("session-0", 51, END)
    second.commit()
    found = {item["id"]: item["name"] for item in read(tmp_path) if item["kind"] == "Marker"}
    assert found == {number: f"decode request {number} of the server" for number in range(60_000)}


def test_open_ranges_kept_by_version_0_1_0_go_on(
    tmp_path: Path, session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = JsonlSink(), JsonlSink()
    first.open_session(session(tmp_path), kept)
    first.write_records("session-0", 2, markers(MarkerFlag.START, range(5), 10))
    first.commit()
    first.close()
    pairing = MarkerPairing()
    pairing.add(markers(MarkerFlag.START, range(5), 10))
    state = json.loads(kept.value)
    del state["packed_markers"]
    state["markers"] = [base64.b64encode(frame).decode() for frame in pairing.to_frames()]
    second.open_session(session(tmp_path), Progress(json.dumps(state).encode()))
    second.write_records("session-0", 3, markers(MarkerFlag.END, range(5), 10**8))
    second.close_session("session-0", 4, END)
    second.commit()
    assert len([item for item in read(tmp_path) if item["kind"] == "Marker"]) == 5


def test_files_per_kind_go_on_after_a_crash_and_keep_their_own_bounds(
    tmp_path: Path, kernels: Callable[..., Batch], batch: Callable[..., Batch],
    session: Callable[..., Any],
) -> None:  # fmt: skip
    kept = Progress()
    opened = session(tmp_path, jsonl_rotate_lines=100, jsonl_rotate_files=2)
    call = batch(ActivityKind.API, [{"start_ns": 1, "end_ns": 2}])
    first, second = JsonlPerKindSink(), JsonlPerKindSink()
    (pattern,) = first.open_session(opened, kept).files
    first.write_records("session-0", 2, call)
    first.write_records("session-0", 3, kernels(250, seed=1))
    assert first.commit() == {}
    first.write_records("session-0", 4, kernels(10, seed=2))
    first.close()
    assert second.open_session(opened, kept).written_seq == 3
    second.write_records("session-0", 4, kernels(10, seed=2))
    second.close_session("session-0", 5, END)
    second.commit()
    by_label: dict[str, list[int]] = {}
    for path in sorted(tmp_path.glob(Path(pattern).name)):
        by_label.setdefault(path.name.split(".")[1], []).append(len(path.read_text().splitlines()))
    assert by_label == {"API": [1], "Kernel": [50, 10], "session": [1]}
    assert len(list(tmp_path.iterdir())) == 4


def test_a_session_of_version_0_1_0_is_continued(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = JsonlSink(), JsonlSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, kernels(10))
    first.commit()
    first.close()
    fields = json.loads(kept.value)
    fields.update(fields.pop("series")[""])
    older = Progress(json.dumps(fields).encode())
    assert second.open_session(session(tmp_path), older).written_seq == 2
    second.close_session("session-0", 3, END)
    second.commit()
    assert len(Path(path).read_text().splitlines()) == 10


def test_a_link_in_the_place_of_a_file_is_not_followed(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    precious = tmp_path / "precious"
    precious.write_text("x" * 100_000)
    first, second = JsonlSink(), JsonlSink()
    (path,) = first.open_session(session(tmp_path / "out"), kept).files
    first.write_records("session-0", 2, kernels(10))
    first.commit()
    first.close()
    Path(path).unlink()
    Path(path).symlink_to(precious)
    second.open_session(session(tmp_path / "out"), kept)
    second.write_records("session-0", 3, kernels(5))
    second.close_session("session-0", 4, END)
    second.commit()
    assert precious.read_text() == "x" * 100_000
    assert Path(path).is_symlink()  # it is not ours any more
    (new,) = (item for item in (tmp_path / "out").iterdir() if not item.is_symlink())
    assert len(new.read_text().splitlines()) == 6


def test_what_lies_at_the_name_of_a_file_is_left_alone_unless_it_is_that_file(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept, other = Progress(), tmp_path / "other"
    first, second = JsonlSink(), JsonlSink()
    (path,) = first.open_session(session(tmp_path / "out"), kept).files
    first.write_records("session-0", 2, kernels(10))
    first.commit()
    first.close()
    other.write_text("x" * 100_000)
    other.rename(path)
    second.open_session(session(tmp_path / "out"), kept)
    second.close()
    assert Path(path).stat().st_size == 100_000


def test_a_session_without_records_leaves_no_file(
    tmp_path: Path, session: Callable[..., Any]
) -> None:
    write(JsonlSink(), session(tmp_path))
    assert os.listdir(tmp_path) == []


def test_group_info_and_gaps(tmp_path: Path, session: Callable[..., Any]) -> None:
    sink = JsonlSink()
    sink.open_session(session(tmp_path))
    sink.write_gap("session-0", 2, Gap("slots", 5, 9, None, "no free buffer"))
    sink.write_note("session-0", 3, "parallel_group_info", '{"g":{"group_name":"dp"}}')
    sink.close_session("session-0", 4, END)
    sink.commit()
    gap, info = read(tmp_path)
    assert (gap["kind"], gap["stage"], gap["records"]) == ("gap", "slots", None)
    assert info == {"kind": "parallel_group_info", "value": '{"g":{"group_name":"dp"}}'}


@pytest.mark.parametrize(
    ("variable", "given", "used"),
    [
        ("ROTATE_LOG_LINES", "99", 100),
        ("ROTATE_LOG_LINES", "100", 100),
        ("ROTATE_LOG_LINES", "500000", 500_000),
        ("ROTATE_LOG_LINES", "500001", 500_000),
        ("ROTATE_LOG_LINES", "abc", 10_000),
        ("ROTATE_LOG_LINES", "", 10_000),
        ("ROTATE_LOG_FILES", "-1", -1),
        ("ROTATE_LOG_FILES", "0", -1),
        ("ROTATE_LOG_FILES", "1", -1),
        ("ROTATE_LOG_FILES", "2", 2),
        ("BUFFER_CAPACITY", "8191", 524_288),
        ("BUFFER_CAPACITY", "8192", 8192),
        ("BUFFER_CAPACITY", "4096", 8192),
        ("BUFFER_CAPACITY", "12345", 524_288),
        ("BUFFER_CAPACITY", "2097152", 2_097_152),
        ("BUFFER_CAPACITY", "4194304", 2_097_152),
        ("BUFFER_CAPACITY", "-1", 524_288),
        ("MAX_DUMP_INTERVAL", "999", 30_000),
        ("MAX_DUMP_INTERVAL", "1000", 1000),
    ],
)
def test_limits_from_the_environment(
    variable: str, given: str, used: int, caplog: pytest.LogCaptureFixture
) -> None:
    names = {
        "ROTATE_LOG_LINES": "lines",
        "ROTATE_LOG_FILES": "files",
        "BUFFER_CAPACITY": "buffer_lines",
        "MAX_DUMP_INTERVAL": "dump_interval_ms",
    }
    limits = limits_in_force({f"MSMONITOR_JSONL_{variable}": given})
    assert limits[names[variable]] == used
    changed = given not in ("", str(used))
    assert len(caplog.records) == int(changed)
    if changed:
        assert given in caplog.text
        assert str(used) in caplog.text
