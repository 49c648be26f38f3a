"""TensorBoard runs, read back with TensorBoard's own reader."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from msmon.errors import SinkError, UsageError
from msmon.records.kinds import ActivityKind
from msmon.records.windows import (
    BUCKET_DTYPE,
    DEVICE_DTYPE,
    OPERATOR_DTYPE,
    Window,
    bucket_of,
)
from msmon.sessions import Gap, MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.tensorboard import event_files, run_directories
from msmon.sinks.tensorboard.sink import TensorBoardSink

BASE_NS = 1_700_000_000 * 10**9
END = SessionEnd(BASE_NS, "stopped")
Operator = tuple[ActivityKind, int, str, str, int, int]
"""kind, device, domain, name, count, duration of each in ns."""

MATMUL: Operator = (ActivityKind.Kernel, 0, "", "MatMul", 3, 2000)
LAUNCH: Operator = (ActivityKind.API, -1, "", "aclrtLaunch", 2, 500)


def window(index: int, *operators: Operator, step: int = -1) -> Window:
    names = tuple(dict.fromkeys(["", *(text for item in operators for text in item[2:4])]))
    rows = np.zeros(len(operators), OPERATOR_DTYPE)
    buckets = np.zeros(len(operators), BUCKET_DTYPE)
    for place, (kind, device, domain, name, count, each_ns) in enumerate(operators):
        rows[place] = (
            kind, device, names.index(name), names.index(domain), count, count * each_ns,
            each_ns, each_ns, 0,
        )  # fmt: skip
        buckets[place] = (place, bucket_of(np.array([each_ns]))[0], count)
    end_ns = BASE_NS + index * 10**9
    return Window(index, end_ns - 10**9, end_ns, step, operators=rows, buckets=buckets, names=names)


def session(name: str = "s1", owner: str = "", **process: Any) -> SessionInfo:
    fields = {"host": "node-1", "pid": 100, "start_time": 1, "rank": 0, **process}
    return SessionInfo(name, ProcessInfo(**fields), MonitorSettings(), BASE_NS, owner)


def scalars(run: Path, tag: str) -> list[tuple[int, float, float]]:
    """(step, wall time, value) of a tag over all files of a run."""
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0})
    reader.Reload()
    return [(event.step, event.wall_time, event.value) for event in reader.Scalars(tag)]


def tags(run: Path) -> set[str]:
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0})
    reader.Reload()
    return set(reader.Tags()["scalars"])


def test_a_window_becomes_totals_and_operator_tags_per_device(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    mark: Operator = (ActivityKind.Marker, 0, "train", "step *", 1, 9000)
    sink.write_window("s1", 2, window(1, MATMUL, LAUNCH, mark))
    device, host = tmp_path / "node-1/rank_0/device_0", tmp_path / "node-1/rank_0/host"
    assert scalars(device, "Kernel") == [(0, 1_700_000_001.0, 6000.0)]
    assert scalars(device, "Marker/train")[0][2] == 9000
    assert scalars(host, "API")[0][2] == 1000
    assert scalars(device, "Kernel.count/MatMul")[0][2] == 3
    assert scalars(device, "Kernel.mean_ns/MatMul")[0][2] == 2000
    assert scalars(device, "Kernel.total_ns/MatMul")[0][2] == 6000
    assert scalars(device, "Kernel.p95_ns/MatMul")[0][2] == pytest.approx(2000, rel=0.07)
    assert "Marker.mean_ns/train/step *" in tags(device)
    assert "API" not in tags(device)
    sink.close()


def test_every_kind_has_its_total(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    sink.write_window("s1", 2, window(1, *((kind, 0, "", "x", 1, 7) for kind in ActivityKind)))
    expected = {kind.name for kind in ActivityKind if kind is not ActivityKind.Marker}
    assert expected | {"Marker/"} <= tags(tmp_path / "node-1/rank_0/device_0")
    sink.close()


def test_the_training_step_is_the_step_when_known(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    sink.write_window("s1", 2, window(1, MATMUL, step=5000))
    sink.write_window("s1", 3, window(2, MATMUL, step=5010))
    steps = [row[0] for row in scalars(tmp_path / "node-1/rank_0/device_0", "Kernel")]
    assert steps == [5000, 5010]
    sink.close()


def test_collectives_have_tags_by_communicator_and_by_size(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    first: Operator = (ActivityKind.Communication, 0, "dp", "allReduce", 2, 5000)
    second: Operator = (ActivityKind.Communication, 0, "dp", "allGather", 1, 7000)
    third: Operator = (ActivityKind.Communication, 0, "tp", "allReduce", 1, 300)
    told = window(1, first, second, third, first)
    told.operators["size_class"] = [22, 0, 10, 33]
    sink.write_window("s1", 2, told)
    run = tmp_path / "node-1/rank_0/device_0"
    assert scalars(run, "Communication")[0][2] == 27_300
    assert scalars(run, "Communication/dp")[0][2] == 27_000
    assert scalars(run, "Communication/tp")[0][2] == 300
    assert {tag for tag in tags(run) if tag.startswith("Communication.count/")} == {
        "Communication.count/dp/allReduce 4 MiB",
        "Communication.count/dp/allReduce 8 GiB",
        "Communication.count/dp/allGather",
        "Communication.count/tp/allReduce 1 KiB",
    }


def test_communicators_beyond_the_bound_are_summed_also_after_a_restart(tmp_path: Path) -> None:
    def write(first: int, index: int) -> None:
        sink = TensorBoardSink(dir=str(tmp_path))
        sink.open_session(session())
        groups = [f"group {number}" for number in range(first, first + 40)]
        rows = [(ActivityKind.Hccl, 0, group, "HcclSend", 1, 10) for group in groups]
        sink.write_window("s1", index, window(index, *rows))
        sink.close()

    write(0, 1)
    write(40, 2)
    run = tmp_path / "node-1/rank_0/device_0"
    assert len([tag for tag in tags(run) if tag.startswith("Hccl/")]) == 51
    assert scalars(run, "Hccl/other")[-1][2] == 300


def test_steps_and_devices_have_scalars(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    devices = np.zeros(1, DEVICE_DTYPE)
    devices[0] = (0, 1000, 600, 150, 250)
    steps = {"steps": 4, "step_total_ns": 2000, "step_min_ns": 400, "step_max_ns": 700}
    sink.write_window("s1", 2, dataclasses.replace(window(1), **steps, devices=devices))
    host, device = tmp_path / "node-1/rank_0/host", tmp_path / "node-1/rank_0/device_0"
    named = {"count": 4, "mean_ns": 500, "min_ns": 400, "max_ns": 700}
    for name, value in named.items():
        assert scalars(host, f"Step/{name}")[0][2] == value
    for name, share in {"busy": 0.6, "exposed": 0.15, "idle": 0.25}.items():
        assert scalars(device, f"Device/{name}")[0][2] == pytest.approx(share)
    assert not any(tag.startswith("Device/") for tag in tags(host))


def test_steps_go_on_after_a_restart_and_resent_windows_do_not_count_twice(
    tmp_path: Path,
) -> None:
    for first in (1, 3):
        sink = TensorBoardSink(dir=str(tmp_path))
        sink.open_session(session())
        for index in range(max(1, first - 1), first + 2):
            sink.write_window("s1", index + 1, window(index, MATMUL))
        sink.close()
    run = tmp_path / "node-1/rank_0/device_0"
    rows = scalars(run, "Kernel")
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert [row[1] for row in rows] == [1_700_000_000.0 + index for index in (1, 2, 3, 4)]
    assert len(list(run.iterdir())) == 2


@pytest.mark.parametrize("name", ["s1", "agent/17 a"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_window_is_known_by_its_number_whatever_the_clock_says(
    tmp_path: Path, name: str, restarted: bool
) -> None:
    random = np.random.default_rng(3)
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session(name))
    for index in range(40):
        back_ns = 3600 * 10**9 if index >= 20 else 0
        end_ns = BASE_NS - back_ns + index * 10**9 + int(random.integers(0, 10**9))
        numbered = dataclasses.replace(window(index, MATMUL), end_ns=end_ns)
        sink.write_window(name, index + 2, numbered)
        if restarted:
            sink.close()
            sink = TensorBoardSink(dir=str(tmp_path))
        sink.open_session(session(name))
        sink.write_window(name, index + 2, numbered)
    sink.close()
    steps = [row[0] for row in scalars(tmp_path / "node-1/rank_0/device_0", "Kernel")]
    assert steps == list(range(40))


def test_a_torn_tail_of_an_earlier_file_is_no_obstacle(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    sink.write_window("s1", 2, window(1, MATMUL))
    sink.write_window("s1", 3, window(2, MATMUL))
    sink.close()
    run = tmp_path / "node-1/rank_0/device_0"
    (torn,) = run.iterdir()
    torn.write_bytes(torn.read_bytes()[:-5])
    again = TensorBoardSink(dir=str(tmp_path))
    again.open_session(session("s2"))
    again.write_window("s2", 2, window(3, MATMUL))
    again.close()
    assert [row[0] for row in scalars(run, "Kernel")][-1] == 1


def test_two_live_processes_of_one_rank_do_not_share_a_folder(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    for name, pid in (("s1", 100), ("s2", 200)):
        sink.open_session(session(name, pid=pid))
        sink.write_window(name, 2, window(1, MATMUL))
    runs = sorted(path.name for path in (tmp_path / "node-1").iterdir())
    assert runs == ["rank_0", "rank_0_pid_200"]
    sink.close()


def test_processes_without_a_rank_and_jobs_with_equal_ranks_stay_apart(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session("a", rank=-1, pid=7))
    sink.open_session(session("b", rank=-1, pid=8))
    sink.open_session(session("c", job_id="123_4"))
    sink.open_session(session("d", job_id="../etc"))
    names = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "node-1").glob("*"))
    assert names == [f"node-1/{name}" for name in ("job_.._etc", "job_123_4", "pid_7", "pid_8")]
    sink.close()


def test_nobody_writes_beside_the_runs_of_another_user(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    own = f"uid {os.geteuid()}"
    for owner in (own, "uid 123456", "key lab.a"):
        sink.open_session(session(owner, owner, job_id="7"))
        sink.write_window(owner, 2, window(1, MATMUL))
        sink.close_session(owner, 3, END)
    runs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("device_0"))
    run = "node-1/job_7/rank_0/device_0"
    assert runs == [f"key_lab.a/{run}", run, f"uid_123456/{run}"]
    sink.close()


def test_a_user_may_have_so_many_directories_until_some_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directories, "MAX_DIRECTORIES", 3)
    sink = TensorBoardSink(dir=str(tmp_path))
    for number, names in enumerate([{"job_id": "1"}, {"rank": -1}, {"rank": 5}]):
        sink.open_session(session(f"s{number}", "uid 123456", **names))
        sink.close()
    for reason in ("other job", "again"):
        with pytest.raises(SinkError, match="uid_123456 has 3 runs"):
            sink.open_session(session(reason, "uid 123456", job_id="2"))
    sink.open_session(session("known", "uid 123456", rank=5))
    sink.open_session(session("of another", "uid 123457", job_id="2"))
    monkeypatch.setattr(run_directories, "RECOUNT_S", 0.0)
    shutil.rmtree(tmp_path / "uid_123456/node-1/job_1")
    sink.open_session(session("room", "uid 123456", job_id="2"))
    sink.close()


@pytest.mark.parametrize("letter", ["x", "名", "."])
def test_names_of_directories_are_short_whatever_a_process_calls_itself(
    tmp_path: Path, letter: str
) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session(host=letter * 10_000, job_id=letter * 10_000))
    sink.close()
    (host,) = tmp_path.iterdir()
    (job,) = host.iterdir()
    assert {letter, "_"} >= set(host.name)
    for name in (host.name, job.name):
        assert len(os.fsencode(name)) <= 210


@pytest.mark.parametrize("what", ["pipe", "link"])
@pytest.mark.parametrize(
    "place", [".msmon-writer.lock", "device_0/events.out.tfevents.1700000000.node-1.1.s0"]
)
def test_what_was_put_at_the_name_of_a_file_is_neither_followed_nor_waited_for(
    tmp_path: Path, what: str, place: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path = tmp_path / "runs/node-1/rank_0" / place
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if what == "pipe" else path.symlink_to(victim)
    sink = TensorBoardSink(dir=str(tmp_path / "runs"))
    with pytest.raises(OSError, match=re.escape(path.name)):
        write_one_window(sink)
    sink.close()
    assert victim.read_bytes() == b"mine"


def write_one_window(sink: TensorBoardSink) -> None:
    sink.open_session(session())
    sink.write_window("s1", 2, window(1, MATMUL))


def test_a_folder_locked_by_another_writer_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "node-1/rank_0"
    other.mkdir(parents=True)
    with (other / ".msmon-writer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sink = TensorBoardSink(dir=str(tmp_path))
        sink.open_session(session())
        sink.write_window("s1", 2, window(1, MATMUL))
        sink.close()
    assert os.listdir(other) == [".msmon-writer.lock"]
    assert "Kernel" in tags(tmp_path / "node-1/rank_0_pid_100/device_0")


def test_a_later_session_of_the_process_continues_its_runs(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    for number, name in enumerate(("s1", "s2"), start=1):
        sink.open_session(session(name))
        sink.write_window(name, 2, window(number, MATMUL))
        sink.close_session(name, 3, END)
    rows = scalars(tmp_path / "node-1/rank_0/device_0", "Kernel")
    assert [row[0] for row in rows] == [0, 1]


def test_tags_stay_few_however_many_names_come(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path), top=5)
    sink.open_session(session())
    for index in range(1, 41):
        fresh = [
            (ActivityKind.Marker, 0, f"domain {index * 10 + n}", f"name {n}", 1, 10 + n)
            for n in range(10)
        ]
        sink.write_window("s1", index + 1, window(index, *fresh))
    run = tmp_path / "node-1/rank_0/device_0"
    found = tags(run)
    assert len([tag for tag in found if tag.startswith("Marker.count/")]) == 21
    assert len([tag for tag in found if tag.startswith("Marker/")]) == 51
    last = scalars(run, "Marker.count/other")[-1]
    assert last[2] == 10
    assert len(list(run.iterdir())) == 1
    sink.close()
    restarted = TensorBoardSink(dir=str(tmp_path), top=5)
    restarted.open_session(session())
    later = (ActivityKind.Marker, 0, "later domain", "later", 1, 10)
    restarted.write_window("s1", 42, window(41, later))
    restarted.close()
    assert "Marker/later domain" not in tags(run)
    assert [value for _, _, value in scalars(run, "Marker/other")][-1] == 10


def test_admitted_operators_are_remembered_over_a_restart(tmp_path: Path) -> None:
    for index in range(1, 31):
        sink = TensorBoardSink(dir=str(tmp_path), top=1)
        sink.open_session(session())
        fresh: Operator = (ActivityKind.Kernel, 0, "", f"op {index}", 1, 5)
        known: Operator = (ActivityKind.Kernel, 0, "", "op 1", 1, 1)
        sink.write_window("s1", index, window(index, *([fresh, known] if index > 1 else [fresh])))
        sink.close()
    counts = [tag for tag in tags(tmp_path / "node-1/rank_0/device_0") if ".count/" in tag]
    assert "Kernel.count/op 1" in counts
    assert len(scalars(tmp_path / "node-1/rank_0/device_0", "Kernel.count/op 1")) == 30


def test_lost_records_show_in_the_host_run(tmp_path: Path) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    gap = Gap("slots", BASE_NS, BASE_NS + 1, {"Kernel": 40, "API": 2})
    sink.write_gap("s1", 2, gap)
    sink.write_gap("s1", 2, gap)
    sink.write_gap("s1", 3, Gap("decode", BASE_NS, BASE_NS + 1, None))
    sink.write_window("s1", 4, window(1, MATMUL))
    host = tmp_path / "node-1/rank_0/host"
    assert scalars(host, "Dropped/slots")[0][2] == 42
    assert scalars(host, "Gaps/decode")[0][2] == 1
    assert "Dropped/decode" not in tags(host)
    sink.close()


def test_a_window_with_thousands_of_devices_takes_few_directories_and_no_descriptors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    before = len(os.listdir("/proc/self/fd"))
    many: list[Operator] = [(ActivityKind.Kernel, dev, "", "k", 1, 9) for dev in range(300)]
    for index in (1, 2):
        sink.write_window("s1", 1 + index, window(index, *many))
        sink.write_window("s1", 11 + index, window(10 + index, MATMUL, LAUNCH))
    assert len(os.listdir("/proc/self/fd")) == before
    sink.close()
    again = TensorBoardSink(dir=str(tmp_path))
    again.open_session(session("s2"))
    again.write_window("s2", 2, window(20, (ActivityKind.Kernel, 999, "", "k", 1, 9)))
    again.close()
    rank = tmp_path / "node-1/rank_0"
    assert len(list(rank.glob("device_*"))) == 64
    assert len(scalars(rank / "device_0", "Kernel")) == 3
    assert scalars(rank / "host", "Dropped/devices")[0][2] == 236
    assert [message.count("more than 64 devices") for message in caplog.messages] == [1, 1]


class FullDisk:
    """A file that takes some bytes of a record and then reports a full disk."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.full = True

    def write(self, data: bytes) -> int:
        if self.full:
            self.real.write(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.real.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_a_full_disk_leaves_no_torn_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TensorBoardSink(dir=str(tmp_path))
    sink.open_session(session())
    sink.write_window("s1", 2, window(1, MATMUL))
    run = tmp_path / "node-1/rank_0/device_0"
    disks: list[FullDisk] = []
    create = event_files.EventFile._create

    def on_full_disk(self: event_files.EventFile) -> Any:
        disks.append(FullDisk(create(self)))
        return disks[-1]

    monkeypatch.setattr(event_files.EventFile, "_create", on_full_disk)
    (only,) = run.iterdir()
    only.unlink()
    with pytest.raises(OSError, match="No space"):
        sink.write_window("s1", 3, window(2, MATMUL))
    disks[-1].full = False
    sink.open_session(session())
    sink.write_window("s1", 3, window(2, MATMUL))
    sink.write_window("s1", 4, window(3, MATMUL))
    assert [row[0] for row in scalars(run, "Kernel")] == [1, 2]
    sink.close()


def test_a_file_in_the_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(SinkError, match="can't write TensorBoard data"):
            TensorBoardSink(dir=str(tmp_path / name))


def test_two_hosts_share_one_folder_and_a_daemon_restarts_in_the_middle(tmp_path: Path) -> None:
    sinks = {host: TensorBoardSink(dir=str(tmp_path)) for host in ("node-1", "node-2")}
    for index in (1, 2):
        for host in sinks:
            for rank in range(2):
                name = f"{host}-{rank}"
                both: list[Operator] = [(ActivityKind.Kernel, dev, "", "k", 1, 9) for dev in (0, 1)]
                sinks[host].open_session(session(name, host=host, rank=rank, pid=100 + rank))
                sinks[host].write_window(name, index + 1, window(index, *both))
        sinks["node-1"].close()
        sinks["node-1"] = TensorBoardSink(dir=str(tmp_path))
    runs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*/device_*"))
    assert runs == [
        f"{host}/rank_{rank}/device_{device}"
        for host in ("node-1", "node-2") for rank in (0, 1) for device in (0, 1)
    ]  # fmt: skip
    assert all([row[0] for row in scalars(tmp_path / run, "Kernel")] == [0, 1] for run in runs)
    for sink in sinks.values():
        sink.close()


def test_without_a_directory_the_sink_says_what_to_write() -> None:
    with pytest.raises(UsageError, match="directory"):
        TensorBoardSink.options_in_force({"dir": None}, {})
