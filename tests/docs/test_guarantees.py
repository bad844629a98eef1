"""What the pages on exceptions and on sharing promise: each sentence of the one and each row of the other is held by
tests, which are named here.

What no other test holds is tested in this file.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

import cuda_gctx
from cuda_gctx import (
    ClosedError,
    CUDAError,
    CUDAWarning,
    Device,
    IsolationError,
    Layout,
    Partitions,
    Stream,
    tune,
)
from cuda_gctx.partitions import store, verify
from cuda_gctx.sim import Session, session

from ..conftest import REPOSITORY
from ..raw import Raw

pytestmark = pytest.mark.sim_only

MS = 1_000_000
# By how a row or a sentence of the page begins: the tests that hold it. None: a fact of the hardware, which no test on
# the software driver can hold; docs/appendix/hardware-facts.md and benchmarks/results have what was measured.
Rows = dict[str, tuple[str, ...] | None]

EXCEPTIONS: Rows = {
    "Every call of `cuda_gctx` either succeeds": (
        "trust/test_fault_sweep.py::test_whatever_call_fails_the_caller_is_told_and_nothing_is_left",
    ),
    "The tests inject a failure": (
        "trust/test_fault_sweep.py::test_whatever_call_fails_the_caller_is_told_and_nothing_is_left",
    ),
    "Nothing is left behind": (
        "trust/test_fault_sweep.py::test_whatever_call_fails_the_caller_is_told_and_nothing_is_left",
        "partitions/test_partitions.py::test_a_failure_of_the_driver_leaves_nothing_behind",
    ),
    "The current context of the thread is unchanged": (
        "trust/test_fault_sweep.py::test_whatever_call_fails_the_caller_is_told_and_nothing_is_left",
    ),
    "You can retry the call": (
        "trust/test_fault_sweep.py::test_whatever_call_fails_the_caller_is_told_and_nothing_is_left",
        "partitions/test_pool.py::test_a_layout_that_fails_is_not_kept",
    ),
    "`close()` raises `ContextCurrentError` while": (
        "core/test_context.py::test_close_while_current_here_is_refused",
        "core/test_context.py::test_close_while_current_on_another_thread_is_refused",
    ),
    "The object stays open": ("core/test_context.py::test_close_while_current_here_is_refused",),
    "Partitions are closed together": ("docs/test_guarantees.py::test_partitions_are_closed_together_or_not_at_all",),
    "After a failure of the driver, the others": (
        "docs/test_guarantees.py::test_partitions_are_closed_also_where_destroying_fails",
    ),
    "A failure of the driver during destruction": (
        "core/test_errors.py::test_what_a_destructor_could_not_do_is_reported_once",
        "core/test_errors.py::test_closing_goes_on_when_destroying_fails",
    ),
    "Closing twice does nothing": (
        "core/test_context.py::test_closing_twice_does_nothing",
        "core/test_stream.py::test_closing_twice_does_nothing_and_with_closes",
        "core/test_event.py::test_closing_twice_does_nothing_and_dropping_destroys",
    ),
    "Work that is in flight goes on": (
        "core/test_ending.py::test_waits_for_the_device_cover_work_whose_partition_was_closed",
    ),
    "The driver need not make the primary context wait": (
        "core/test_ending.py::test_waits_for_the_device_cover_work_whose_partition_was_closed",
    ),
    "This package therefore destroys the context only when": (
        "core/test_ending.py::test_waits_for_the_device_cover_work_whose_partition_was_closed",
        "core/test_ending.py::test_waits_for_the_device_cover_work_of_what_was_dropped",
        "core/test_ending.py::test_waits_for_the_device_cover_work_of_what_frameworks_had_seen",
    ),
    "Its SMs count as free": ("core/test_ending.py::test_its_sms_are_free_at_once",),
    "After a failure, the layout that was current": (
        "partitions/test_switching.py::test_a_switch_that_failed_changed_nothing_and_is_repeated",
    ),
    "Some waits may already be enqueued": (
        "partitions/test_switching.py::test_a_switch_that_failed_changed_nothing_and_is_repeated",
    ),
    "The same switch can be made again": (
        "partitions/test_switching.py::test_a_switch_that_failed_changed_nothing_and_is_repeated",
    ),
    "An exception in the body": (
        "core/test_current.py::test_an_exception_restores_too",
        "interop/test_torch.py::test_an_exception_leaves_the_block_in_order_too",
    ),
    "The exception of the body propagates": (
        "interop/test_torch.py::test_an_error_on_leaving_comes_behind_that_of_the_block",
    ),
    "If leaving the block fails too": (
        "interop/test_torch.py::test_an_error_on_leaving_comes_behind_that_of_the_block",
    ),
    "It stays current until it is the innermost": (
        "core/test_blocks.py::test_generators_that_are_closed_in_the_wrong_order_raise_and_use_nothing_that_is_gone",
    ),
    "A block that another task": ("core/test_tasks.py::test_a_block_that_another_task_leaves_is_left_and_raises",),
    "Contexts that other code pushed inside a block": (
        "core/test_blocks.py::test_a_block_takes_its_own_place_away_below_what_other_code_left_in_it",
        "core/test_blocks.py::test_what_other_code_has_destroyed_is_not_made_current_again",
    ),
    "There is one exception": (
        "core/test_blocks.py::test_the_blocks_own_context_that_inner_code_pushed_and_left_belongs_to_that_code",
    ),
    "If other code has popped the context": (
        "core/test_blocks.py::test_what_other_code_has_destroyed_is_not_made_current_again",
    ),
    "An exception in `__enter__`": (
        "core/test_current.py::test_an_exception_in_enter_comes_before_the_context_is_pushed",
    ),
    "Any of these calls can raise the error of a kernel": (
        "docs/test_guarantees.py::test_objects_of_a_lost_context_raise_and_can_be_closed",
    ),
    "The context is then lost": None,
    "Objects can still be closed": ("docs/test_guarantees.py::test_objects_of_a_lost_context_raise_and_can_be_closed",),
    "`Device.sync()` waits for": (
        "core/test_ending.py::test_waits_for_the_device_cover_work_whose_partition_was_closed",
        "partitions/test_graphs.py::test_a_device_waits_for_graphs_that_other_code_launched_in_partitions",
    ),
    "`verify()` raises `IsolationError` if": (
        "docs/test_guarantees.py::test_a_failed_verification_leaves_partitions_open",
    ),
    "The partitions stay open": ("docs/test_guarantees.py::test_a_failed_verification_leaves_partitions_open",),
    "A call on a stream or a context that is part of a capture": (
        "core/test_objects.py::test_what_would_spoil_a_capture_is_refused",
    ),
    "It does not reach the driver": ("core/test_objects.py::test_what_would_spoil_a_capture_is_refused",),
    "The driver refuses other calls that do not fit into a capture": (
        "docs/test_guarantees.py::test_what_does_not_fit_into_a_capture_is_an_error_and_ends_it",
    ),
    "No call of a pool ends a capture": (
        "trust/test_state_machine.py::test_random_programs_of_the_whole_api_do_what_the_model_says",
        "partitions/test_pool.py::test_a_switch_leaves_a_capture_of_another_stream_alone",
        "partitions/test_pool.py::test_a_layout_that_is_dropped_during_a_capture_leaves_the_capture_alone",
    ),
    "`prepare()` of a new layout and `verify()` raise": (
        "partitions/test_pool.py::test_building_is_refused_during_capture_and_switching_is_not",
        "partitions/test_pool.py::test_a_verification_is_refused_during_a_capture_before_anything_is_asked",
        "partitions/test_pool.py::test_a_pool_is_not_closed_while_a_stream_of_a_plan_captures",
    ),
    "`switch()` raises a `RuntimeError`": (
        "partitions/test_pool.py::test_a_switch_is_refused_while_the_old_layout_is_not_part_of_the_capture",
    ),
    "`close()` of a stream that is part of a capture": (
        "core/test_objects.py::test_a_stream_is_not_closed_while_it_captures",
        "core/test_objects.py::test_a_capture_outlives_the_last_object_of_its_stream",
    ),
    "These are a `wait()` of a capturing stream": (
        "docs/test_guarantees.py::test_what_does_not_fit_into_a_capture_is_an_error_and_ends_it",
    ),
    "A stream that is dropped without `close()`": (
        "core/test_objects.py::test_a_capture_outlives_the_last_object_of_its_stream",
    ),
    "Closing or dropping anything else": ("partitions/test_graphs.py::test_what_is_dropped_ends_no_capture",),
    "A child that was forked": (
        "core/test_fork.py::test_a_forked_child_gets_an_error_and_ends_cleanly",
        "core/test_fork.py::test_a_child_of_a_process_that_was_opening_the_driver_gets_the_error",
        "core/test_locks.py::test_destructors_in_a_forked_child_wait_for_no_lock",
    ),
    "Its destructors do nothing": ("core/test_locks.py::test_destructors_in_a_forked_child_wait_for_no_lock",),
    "If the interpreter ends during a driver call": (
        "core/test_exit.py::test_calls_that_fail_after_the_interpreter_end_nothing_else",
    ),
    "A block that is left before a block inside it": (
        "core/test_blocks.py::test_generators_that_are_closed_in_the_wrong_order_raise_and_use_nothing_that_is_gone",
        "interop/test_cupy.py::test_blocks_left_in_a_wrong_order_leave_cupy_where_it_was",
    ),
    "`tune.overlap` returns a report even": (
        "tune/test_failures.py::test_partitions_in_which_a_part_fails_are_left_out",
    ),
    "It raises if a part fails in every plan": (
        "tune/test_failures.py::test_what_a_part_raises_comes_out_with_its_name_and_the_plan",
    ),
    "`Ctrl-C` ends it": ("tune/test_budget.py::test_ctrl_c_gives_what_was_measured_so_far",),
    "A parameter that takes a whole number": (
        "house/test_arguments.py::test_numbers_times_and_bools_are_read_alike_at_every_door",
        "house/test_arguments.py::test_no_public_parameter_that_takes_a_number_or_a_bool_is_left_out",
    ),
    "The message of the `TypeError`": (
        "house/test_arguments.py::test_numbers_times_and_bools_are_read_alike_at_every_door",
    ),
    "If you pass a field of the options as a keyword": (
        "core/test_options.py::test_a_wrong_keyword_is_answered_with_what_was_meant",
    ),
    "A dict of options with a field": (
        "core/test_options.py::test_a_dict_with_a_wrong_field_is_refused_with_the_class_and_the_nearest_field",
    ),
    "`ValueError`, `TypeError`": ("core/test_errors.py::test_every_message_says_what_to_do",),
    "`SplitError`": ("core/test_errors.py::test_the_suggestion_of_a_refused_split_travels_too",),
    "`ResourceOverlapError`": ("core/test_overlap.py::test_exclusive_raises_instead_and_makes_nothing",),
    "`FeatureNotSupported`": ("core/test_errors.py::test_the_kinds_of_errors_are_what_a_user_would_catch",),
    "`DriverNotFound`": ("core/test_errors.py::test_the_kinds_of_errors_are_what_a_user_would_catch",),
    "`IsolationError`": ("docs/test_guarantees.py::test_a_failed_verification_leaves_partitions_open",),
    "`CUDAError`": ("core/test_errors.py::test_a_failed_call_is_reported_with_code_name_and_call",),
    "`ClosedError`": ("core/test_objects.py::test_errors_have_their_public_names_and_are_runtime_errors",),
    "`ContextCurrentError`": ("core/test_context.py::test_close_while_current_on_another_thread_is_refused",),
    "`CapturingError`": ("core/test_objects.py::test_what_would_spoil_a_capture_is_refused",),
    "`ForkedError`": ("core/test_fork.py::test_a_forked_child_gets_an_error_and_ends_cleanly",),
    "`RuntimeError`": ("core/test_tasks.py::test_two_tasks_cannot_have_a_block_each",),
    "`ResourceOverlapWarning`": ("core/test_objects.py::test_a_warning_says_who_has_the_sms_exclusively",),
    "`CUDAWarning`": ("core/test_errors.py::test_what_a_destructor_could_not_do_is_reported_once",),
}

SHARING: Rows = {
    "kernels on `part.stream`": ("partitions/test_verify.py::test_partitions_run_on_their_own_sms_and_at_once",),
    "work of PyTorch in": ("interop/test_torch.py::",),
    "CUDA graphs captured": ("partitions/test_graphs.py::test_a_graph_of_another_partition_is_refused",),
    "partitions of one layout": ("partitions/test_verify.py::test_partitions_run_on_their_own_sms_and_at_once",),
    "a layout, on the same card": ("docs/test_guarantees.py::test_a_layout_has_the_same_sms_in_every_process",),
    "work on the primary context": ("tune/test_explain.py::test_work_on_the_primary_context_fills_partitions_too",),
    "green contexts that other code created": (
        "core/test_overlap.py::test_contexts_of_other_makers_over_the_same_sms_are_beyond_knowing",
    ),
    "other processes": ("docs/test_guarantees.py::test_a_layout_has_the_same_sms_in_every_process",),
    "a process with a percentage of MPS": None,
    "kernels launched after a module with dynamic parallelism": None,
    "copies, and kernels": None,
    "the grid size that a library chooses": (
        "interop/test_library_sms.py::test_without_being_asked_no_library_gets_a_hint",
    ),
    "`sm_count`": ("core/test_stream.py::",),
    "`requested`": ("partitions/test_partitions.py::",),
    "`dev.partition_sizes()`": ("partitions/test_partitions.py::test_sizes_are_those_that_partitions_get",),
    "`parts.verify()`": ("partitions/test_verify.py::",),
    "`tune.overlap`": ("tune/test_worlds.py::",),
    "an NCCL communicator": ("interop/test_sharing.py::test_one_communicator_in_two_partitions_is_found",),
    "a cuBLAS or cuDNN handle": ("interop/test_sharing.py::test_one_cublas_handle_in_two_partitions_is_found",),
    "a cuBLAS workspace": ("interop/test_sharing.py::test_two_handles_whose_workspaces_overlap_are_found",),
    "locks and counters": (
        "interop/test_sharing.py::test_lock_arrays_are_found_and_weights_may_be_shared",
        "interop/test_sharing.py::test_memory_that_kernels_write_to_is_known_by_its_name",
    ),
    "a scratch buffer": ("interop/test_sharing.py::test_tensors_that_are_given_count_if_their_memory_overlaps",),
    "the memory pool of a CUDA graph": ("interop/test_sharing.py::test_graphs_with_one_pool_are_found",),
    "a CUDA graph that is being launched": (
        "partitions/test_graphs.py::test_a_graph_of_another_partition_is_refused",
        "partitions/test_graphs.py::test_a_graph_is_launched_on_any_stream_of_its_context_and_on_no_other",
    ),
    "a memory pool without stream order": ("interop/test_memory_on_gpu.py::",),
    "an event that is recorded again": ("docs/test_guarantees.py::test_a_waiter_sees_the_latest_record_of_an_event",),
    "the legacy default stream": (
        "docs/test_guarantees.py::test_the_legacy_default_stream_waits_for_blocking_streams_and_not_for_partitions",
    ),
    "A context, stream or partition belongs to its process": (
        "core/test_objects.py::test_copies_are_refused_with_what_to_do",
        "docs/test_guarantees.py::test_a_layout_has_the_same_sms_in_every_process",
    ),
    "A forked child": ("core/test_fork.py::test_a_forked_child_gets_an_error_and_ends_cleanly",),
    "Processes do not see": ("docs/test_guarantees.py::test_a_layout_has_the_same_sms_in_every_process",),
    "L2 cache": None,
    "device memory and its bandwidth": (
        "sim/test_curves.py::test_a_memory_bound_step_is_slower_next_to_others_in_other_sms",
    ),
    "power and clocks": None,
    "copy engines, NVLink, PCIe": None,
    "hardware queues": ("tune/test_explain.py::",),
    "the address space": ("docs/test_guarantees.py::test_a_partition_reaches_the_memory_of_another",),
}


OF_EXCEPTIONS = "## What an exception guarantees"


def parts_of_the_page() -> tuple[str, str]:
    """On sharing, without "Finding it", which has tests of its own; and on exceptions."""
    sharing, heading, exceptions = (REPOSITORY / "docs" / "guarantee.md").read_text().partition(OF_EXCEPTIONS)
    assert heading
    return re.sub(r"^### Finding it.*?^(?=## )", "", sharing, flags=re.DOTALL | re.MULTILINE), exceptions


def sentences(text: str) -> list[str]:
    """Those outside of tables, without headings, examples and what only introduces a list."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^[#|].*$|^- ", "\n", text, flags=re.MULTILINE)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    found = [one for block in blocks for one in re.split(r"(?<=[.!?]) (?=[A-Z`])", block)]
    return [one for one in found if one and not one.startswith("This section says") and not one.endswith(":")]


def rows(text: str) -> list[str]:
    """The rows of tables and the items of lists, without headings."""
    tables = re.findall(r"^\| (?!---)(.*)$", re.sub(r"^\|.*\n(?=\| ---)", "", text, flags=re.MULTILINE), re.MULTILINE)
    return [*tables, *re.findall(r"^- (.*)$", text, re.MULTILINE)]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / "tests" / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_sentence_on_exceptions_is_held_by_tests_that_exist() -> None:
    _, exceptions = parts_of_the_page()
    demand_held(sentences(exceptions) + rows(exceptions), EXCEPTIONS)


def test_every_row_on_sharing_is_held_by_tests_that_exist() -> None:
    sharing, _ = parts_of_the_page()
    demand_held(rows(sharing), SHARING)


def demand_held(found: list[str], held: Rows) -> None:
    assert [row for row in found if not any(row.startswith(begin) for begin in held)] == []
    assert [begin for begin in held if not any(row.startswith(begin) for row in found)] == []
    names = [name.split("::") for tests in held.values() for name in tests or ()]
    assert [name for name in names if name[1] and name[1] not in names_in(name[0])] == []
    assert all((REPOSITORY / "tests" / file).exists() for file, _ in names)


def test_the_table_of_exceptions_has_every_public_one() -> None:
    kinds = {name for name in cuda_gctx.__all__ if isinstance(getattr(cuda_gctx, name), type)}
    raised = {name for name in kinds if issubclass(getattr(cuda_gctx, name), Exception)}
    listed = {name for row in rows(parts_of_the_page()[1]) for name in re.findall(r"`(\w+)`", row.split("|")[0])}
    assert raised <= listed


def test_partitions_are_closed_together_or_not_at_all(machine: Session, parts: Partitions) -> None:
    with parts.b.context.current():
        with pytest.raises(RuntimeError, match="current"):
            parts.close()
        assert not parts.is_closed
        parts.a.sync()  # nothing of it was closed
    parts.close()
    assert parts.is_closed
    assert not machine.ledger().misuse


def test_partitions_are_closed_also_where_destroying_fails() -> None:
    with warnings.catch_warnings(), session("h200", check=False) as machine:
        warnings.simplefilter("ignore", CUDAWarning)
        with Device(0).partition(a=16, b=16, c=16):
            made = machine.calls("cuGreenCtxCreate")
            machine.fail("cuGreenCtxDestroy", nth=1)
        store.drop()
        assert machine.calls("cuGreenCtxDestroy") == made
        assert len(machine.ledger().live_of("green context")) == 1


# What a context answers after one of its kernels failed: every call that waits, enqueues or destroys.
AFTER_A_FAILED_KERNEL = [
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuCtxSynchronize",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuLaunchKernel",
    "cuStreamDestroy",
    "cuEventDestroy",
    "cuGreenCtxDestroy",
]


@pytest.fixture
def machine() -> Iterator[Session]:
    with session("h200", driver="13.0") as made:
        yield made


@pytest.fixture
def parts(machine: Session) -> Iterator[Partitions]:
    with Device(0).partition(a=16, b=16) as made:
        yield made


def test_objects_of_a_lost_context_raise_and_can_be_closed() -> None:
    def lose() -> None:
        parts = Device(0).partition(a=16)
        stream, event = parts.a.context.create_stream(), parts.a.context.create_event()
        for function in AFTER_A_FAILED_KERNEL:
            lost.fail(function, code="CUDA_ERROR_ILLEGAL_ADDRESS")
        for use in (stream.sync, parts.a.sync, stream.record, lambda: stream.is_done):
            with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
                use()
        for thing in (event, stream, parts):
            thing.close()
        assert (event.is_closed, stream.is_closed, parts.is_closed) == (True, True, True)
        with pytest.raises(ClosedError):
            stream.sync()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CUDAWarning)
        with session("h200", check=False) as lost:
            lose()


def test_a_failed_verification_leaves_partitions_open(parts: Partitions) -> None:
    with pytest.raises(IsolationError) as caught:
        verify({"a": parts.a.context, "again": parts.a.context})
    assert caught.value.report.problems
    assert not parts.is_closed
    parts.verify()


def test_a_waiter_sees_the_latest_record_of_an_event(parts: Partitions) -> None:
    writer, waiter = parts.a.stream, parts.b.stream
    event = writer.record()
    tune.spin(writer, blocks=16, spin_ns=5 * MS)
    writer.record(event)  # another stream was to wait for the first record
    waiter.wait(event)
    waiter.sync()
    assert writer.is_done  # it waited for the work between the records


def test_the_legacy_default_stream_waits_for_blocking_streams_and_not_for_partitions(
    machine: Session, parts: Partitions
) -> None:
    dev = Device(0)
    with dev.context.current(), dev.create_stream({"nonblocking": False}) as blocking:
        legacy = Stream.from_handle(1)
        tune.spin(parts.a.stream, blocks=16, spin_ns=20 * MS)
        tune.spin(blocking, blocks=16, spin_ns=5 * MS)
        tune.spin(legacy, blocks=1, spin_ns=MS // 100)
        machine.advance(MS)
        assert not legacy.is_done  # behind the blocking stream
        legacy.sync()
        assert blocking.is_done
        assert not parts.a.stream.is_done
        parts.a.sync()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize(
    "call",
    [
        "stream.wait",
        "other.sync",
        "elsewhere.sync",
        "other.is_done",
        "event.sync",
        "event.is_done",
        "graph",
        "timeline",
    ],
)
def test_what_does_not_fit_into_a_capture_is_an_error_and_ends_it(parts: Partitions, mode: Any, call: str) -> None:
    with parts.a.context.create_stream() as stream, parts.a.context.create_stream() as other:
        event = other.record()
        other.sync()
        with other.capture() as earlier:
            pass
        calls: dict[str, Callable[[], object]] = {
            "stream.wait": lambda: stream.wait(event),
            "other.sync": other.sync,
            "elsewhere.sync": parts.b.stream.sync,
            "other.is_done": lambda: other.is_done,
            "graph": lambda: earlier.graph.instantiate().close(),
            "timeline": lambda: tune.Timeline(parts),
            "event.sync": event.sync,
            "event.is_done": lambda: event.is_done,
        }
        capture = stream.capture(mode)
        capture.__enter__()
        with pytest.raises(CUDAError, match="STREAM_CAPTURE"):
            calls[call]()
        with pytest.raises(CUDAError, match="CAPTURE_INVALIDATED"):
            capture.__exit__(None, None, None)
        calls[call]()  # afterwards


SMS_OF_A_LAYOUT = """
import json, sys
from cuda_gctx import Device, Layout
with Device(0).partition(Layout.from_json(sys.stdin.read())) as parts:
    parts.verify()
    print(json.dumps({part.name: list(part.sm_ids) for part in parts}))
"""


def test_a_layout_has_the_same_sms_in_every_process() -> None:
    layout = Layout(decode=16, prefill=96)
    with session("h200", driver="13.0"), Device(0).partition(layout) as parts:
        parts.verify()
        here = {part.name: list(part.sm_ids or ()) for part in parts}
    done = subprocess.run(
        [sys.executable, "-c", SMS_OF_A_LAYOUT],
        input=layout.to_json(),
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here


def test_a_partition_reaches_the_memory_of_another(parts: Partitions) -> None:
    raw = Raw()
    address = ctypes.c_uint64()
    with parts.a.context.current():
        raw.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
    with parts.b.context.current():
        raw.call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), ctypes.c_size_t(4096))
        raw.call("cuMemFree_v2", address)
