"""The monitors of the mspti package: one callback per record, on a thread of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from msmon import Monitor, mspti
from msmon.compat.mspti.from_batches import communication_data, mark_data, range_data
from msmon.errors import CommandRefused
from msmon.mspti import (
    CommunicationMonitor,
    KernelData,
    KernelMonitor,
    MarkerData,
    MsptiActivityFlag,
    MsptiActivityKind,
    MsptiActivitySourceKind,
    MsptiCommunicationDataType,
    MsptiObjectId,
    MsptiResult,
    MstxMonitor,
)
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.markers import MarkerPairing

SUCCESS = MsptiResult.MSPTI_SUCCESS
INVALID = MsptiResult.MSPTI_ERROR_INVALID_PARAMETER


@pytest.fixture
def monitors(library: Any) -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for monitor in started:
        monitor.stop()


def test_each_kernel_reaches_the_callback_on_one_thread(library: Any, monitors: list[Any]) -> None:
    seen: list[KernelData] = []
    threads = set()

    def callback(data: KernelData) -> None:
        threads.add(threading.current_thread())
        seen.append(data)

    monitor = KernelMonitor()
    monitors.append(monitor)
    assert monitor.start(callback) is SUCCESS
    library.start_recording(2, [ActivityKind.Kernel], records_each=1000)
    library.join_recording()
    assert monitor.flush_all() is SUCCESS
    assert len(seen) == 2000
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    assert seen[0].kind is MsptiActivityKind.MSPTI_ACTIVITY_KIND_KERNEL
    assert monitor.stop() is SUCCESS
    library.record(ActivityKind.Kernel, 5)
    assert len(seen) == 2000


def test_two_monitors_of_a_class_each_have_their_callback(
    library: Any, monitors: list[Any]
) -> None:
    counts = [0, 0]

    def counter(place: int) -> Any:
        def count(data: KernelData) -> None:
            counts[place] += 1

        return count

    first, second = KernelMonitor(), KernelMonitor()
    monitors += [first, second]
    first.start(counter(0))
    second.start(counter(1))
    library.record(ActivityKind.Kernel, 3)
    first.stop()
    library.record(ActivityKind.Kernel, 4)
    second.stop()
    assert counts == [3, 7]


def test_an_exception_in_a_callback_is_printed_and_collection_goes_on(
    library: Any, monitors: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def callback(data: KernelData) -> None:
        calls.append(data)
        raise RuntimeError("mine")

    monitor = KernelMonitor()
    monitors.append(monitor)
    monitor.start(callback)
    library.record(ActivityKind.Kernel, 2)
    monitor.stop()
    assert len(calls) == 2
    assert "Call kernel callback failed. Exception: mine" in capsys.readouterr().out


def test_a_callback_may_stop_its_monitor(library: Any, monitors: list[Any]) -> None:
    monitor = KernelMonitor()
    monitors.append(monitor)
    stopped = threading.Event()

    def callback(data: KernelData) -> None:
        monitor.stop()
        stopped.set()

    monitor.start(callback)
    library.record(ActivityKind.Kernel, 1)
    assert stopped.wait(5)


def test_what_is_no_callback_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert KernelMonitor().start(3) is INVALID  # type: ignore[arg-type]
    assert MstxMonitor().start(mark_cb=print, range_cb="x") is INVALID  # type: ignore[arg-type]
    assert "[ERROR] [MSPTI]" in capsys.readouterr().out


def test_a_failed_start_leaves_nothing_behind(library: Any, monitors: list[Any]) -> None:
    with Monitor([ActivityKind.Kernel]):
        refused = KernelMonitor().start(print)
        assert refused is MsptiResult.MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        assert CommunicationMonitor().start(print) is refused
    monitor = KernelMonitor()
    monitors.append(monitor)
    seen: list[KernelData] = []
    assert monitor.start(seen.append) is SUCCESS
    with pytest.raises(CommandRefused, match="an mspti monitor"):
        Monitor().start([ActivityKind.Kernel])
    library.record(ActivityKind.Kernel, 1)
    monitor.stop()
    assert len(seen) == 1


def test_a_kind_that_mspti_refuses_gives_its_code(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = mspti.HcclMonitor().start(print)
    assert result is MsptiResult.MSPTI_ERROR_WITHOUT_LD_PRELOAD
    with Monitor([ActivityKind.Kernel]) as monitor:
        assert monitor.running


def test_periods_and_sizes_are_checked() -> None:
    assert KernelMonitor.flush_period(100) is SUCCESS
    assert KernelMonitor.flush_period(0) is SUCCESS
    assert KernelMonitor.flush_period(-1) is INVALID
    with pytest.raises(TypeError):
        KernelMonitor.flush_period(1.5)  # type: ignore[arg-type]
    assert [KernelMonitor.set_buffer_size(size) for size in (1, 256)] == [SUCCESS] * 2
    assert [KernelMonitor.set_buffer_size(size) for size in (0, 257, True)] == [INVALID] * 3


def test_marker_domains_are_switched_in_the_library(library: Any) -> None:
    monitor = MstxMonitor()
    assert monitor.disable_domain("communication") == 0
    assert monitor.enable_domain("communication") == 0
    assert monitor.enable_domain("") is INVALID


def markers() -> Batch:
    records = np.zeros(5, DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    records["id"] = [1, 1, 1, 1, 2]
    start, end = MarkerFlag.START_WITH_DEVICE, MarkerFlag.END_WITH_DEVICE
    records["flag"] = [start, start, end, end, MarkerFlag.INSTANTANEOUS]
    device, host = SourceKind.DEVICE, SourceKind.HOST
    records["source_kind"] = [host, device, device, host, host]
    records["timestamp_ns"] = [10, 12, 18, 20, 30]
    records["process_or_device_id"] = [77, 3, 3, 77, 77]
    records["thread_or_stream_id"] = [78, 4, 4, 79, 80]
    records["name"] = [1, 0, 0, 0, 3]
    records["domain"] = [2, 0, 0, 0, 2]
    return Batch(ActivityKind.Marker, records, ("", "step", "default", "mark"))


def test_ranges_are_paired_per_source_and_marks_passed_on() -> None:
    ranges = {item.source_kind: item for item in range_data(MarkerPairing().add(markers()))}
    host = ranges[MsptiActivitySourceKind.MSPTI_ACTIVITY_SOURCE_KIND_HOST]
    device = ranges[MsptiActivitySourceKind.MSPTI_ACTIVITY_SOURCE_KIND_DEVICE]
    assert (host.start, host.end, host.name, host.domain) == (10, 20, "step", "default")
    assert (device.start, device.end, device.id) == (12, 18, 1)
    assert vars(host.object_id) == {
        "process_id": 77, "thread_id": 78, "device_id": -1, "stream_id": -1,
    }  # fmt: skip
    assert (device.object_id.device_id, device.object_id.process_id) == (3, -1)
    (mark,) = mark_data(markers())
    assert (mark.timestamp, mark.name, mark.id) == (30, "mark", 2)
    assert mark.flag is MsptiActivityFlag.MSPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS


def test_an_unassigned_data_type_does_not_lose_the_record() -> None:
    records = np.zeros(1, DTYPES[ActivityKind.Communication])
    records["kind"] = ActivityKind.Communication
    records["data_type"] = 13
    (data,) = communication_data(Batch(ActivityKind.Communication, records, ("",)))
    unknown = MsptiCommunicationDataType.MSPTI_ACTIVITY_COMMUNICATION_INVALID_TYPE
    assert data.data_type is unknown


def test_data_classes_take_their_defaults() -> None:
    kernel = KernelData({})
    assert (kernel.kind, kernel.name, kernel.start) == (
        MsptiActivityKind.MSPTI_ACTIVITY_KIND_INVALID, "", 0,
    )  # fmt: skip
    assert MarkerData({}).flag is MsptiActivityFlag.MSPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS
    assert list(vars(MsptiObjectId({})).values()) == [-1, -1, 0, 0]
    with pytest.raises(ValueError, match="77"):
        KernelData({KernelData.KIND: 77})


def test_the_names_of_the_package_are_all_there() -> None:
    expected = {
        "KernelMonitor", "KernelData", "MstxMonitor", "MarkerData", "RangeMarkerData",
        "HcclMonitor", "HcclData", "CommunicationMonitor", "CommunicationData", "MsptiObjectId",
        "MsptiResult", "MsptiActivityKind", "MsptiActivityFlag", "MsptiActivitySourceKind",
        "MsptiCommunicationDataType",
    }  # fmt: skip
    assert expected <= set(mspti.__all__)
