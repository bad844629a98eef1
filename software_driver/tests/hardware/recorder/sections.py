"""The sections of a recording by their names, in the order in which they are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    descriptors,
    ends,
    events,
    graph_contexts,
    graph_waits,
    identity,
    in_processes,
    limits,
    measured,
    misuse,
    objects,
    orders,
    resources,
    splits,
)
from .gpu import Gpu
from .notes import Note

Section = Callable[[Gpu, Note], Any]


SECTIONS: dict[str, Section] = {
    "device": splits.record_device,
    "split_by_count": splits.record_split_by_count,
    "split_count_only": splits.record_split_count_only,
    "smids": splits.record_smids,
    "layout": splits.record_layout,
    "two_step": splits.record_two_step,
    "descriptors": descriptors.record_descriptors,
    "identity": identity.record_identity,
    "limits": limits.record_limits,
    "events": events.record_events,
    "structured_split": resources.record_structured_split,
    "workqueues": resources.record_workqueues,
    "refusals": resources.record_refusals,
    "attributes": objects.record_attributes,
    "modules": objects.record_modules,
    "graphs": objects.record_graphs,
    "graph_contexts.kernels": graph_contexts.record_kernels,
    "graph_contexts.executables": graph_contexts.record_executables,
    "graph_contexts.functions": graph_contexts.record_functions,
    "graph_contexts.functions_captured_again": graph_contexts.record_functions_captured_again,
    "graph_contexts.attributes": graph_contexts.record_attributes,
    "graph_contexts.cooperative": graph_contexts.record_cooperative,
    "graph_contexts.programmatic": graph_contexts.record_programmatic,
    "graph_contexts.others": graph_contexts.record_others,
    "graph_contexts.pace": graph_contexts.record_pace,
    "graph_waits": graph_waits.record_waits,
    "default_streams": orders.record_default_streams,
    "nested_waits": orders.record_nested_waits,
    "module_functions": orders.record_module_functions,
    **ends.SECTIONS,
    "tensor_maps": objects.record_tensor_maps,
    "contract": in_processes.record_contract,
    "sentences": in_processes.record_sentences,
    "codes": in_processes.record_codes,
    "measured": measured.record_measured,
    "misuse.resplit": misuse.misuse_resplit,
    "misuse.arguments": misuse.misuse_arguments,
    "misuse.destroy_while_current": misuse.misuse_destroy_while_current,
    "misuse.push_destroyed": misuse.misuse_push_destroyed,
    "misuse.query_destroyed": misuse.misuse_query_destroyed,
    "misuse.stream_after_context": misuse.misuse_stream_after_context,
    "misuse.pushed_stream_after_context": misuse.misuse_pushed_stream_after_context,
    "misuse.destroy_with_work": misuse.misuse_destroy_with_work,
    "misuse.destroy_twice": misuse.misuse_destroy_twice,
    "misuse.ctx_destroy": misuse.misuse_ctx_destroy,
    "misuse.nulls": misuse.misuse_nulls,
    "misuse.no_current_context": misuse.misuse_no_current_context,
    "misuse.primary_released": misuse.misuse_primary_released,
    "misuse.primary_closed": misuse.misuse_primary_closed,
    "misuse.inner_after_outer": misuse.misuse_inner_after_outer,
    "misuse.edited": misuse.misuse_edited,
    "misuse.threads": misuse.misuse_threads,
    "misuse.forked": misuse.misuse_forked,
    "misuse.capture_ended_elsewhere": misuse.misuse_capture_ended_elsewhere,
}
