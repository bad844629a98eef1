// Memory operations of streams: they write words, and wait for words that other streams, the host or other processes
// write.
#include <atomic>

#include "calls/allocations.hpp"
#include "calls/queueing.hpp"

namespace software_driver {
namespace {

// A word of memory, looked up at each use: it may be freed meanwhile.
template <class Do>
bool with_word(Machine& machine, std::uint64_t address, bool wide, Do&& use) {
  const Bytes bytes = bytes_at(machine, address, wide ? 8 : 4);
  if (bytes.is_empty()) {
    return true;  // nobody could ever write it
  }
  return wide ? use(std::atomic_ref(*reinterpret_cast<std::uint64_t*>(bytes.host())))
              : use(std::atomic_ref(*reinterpret_cast<std::uint32_t*>(bytes.host())));
}

bool is_reached(std::uint64_t found, std::uint64_t value, unsigned flags, bool wide) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return wide ? static_cast<std::int64_t>(found - value) >= 0 : static_cast<std::int32_t>(found - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return found == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (found & value) != 0;
    default:
      return (wide ? ~(found | value) : ~static_cast<std::uint32_t>(found | value)) != 0;
  }
}

// A place where a word may stand: aligned memory of the driver, which shows to a program where the host reads it.
void locate_word(Call& c, std::uint64_t address, bool wide, bool writes, Step& node) {
  const unsigned size = wide ? 8 : 4;
  const Allocation* found = find_allocation(c.machine, address, size);
  refuse_if(found == nullptr || address % size != 0 || !is_reachable(*found, writes), CUDA_ERROR_INVALID_VALUE);
  node.shows = writes && (found->type == CU_MEMORYTYPE_HOST || found->managed);
}

template <class Change>
void plan_change(Call& c, std::uint64_t address, bool wide, Step& node, Change change) {
  locate_word(c, address, wide, true, node);
  node.marks = [&machine = c.machine, address, size = wide ? 8U : 4U](Work&) {
    machine.unknown.clear(bytes_at(machine, address, size), 0, size);
  };
  node.effect = [&machine = c.machine, address, wide, change] {
    with_word(machine, address, wide, [&](auto word) {
      change(word);
      return true;
    });
    return Rest{};
  };
}

void plan_wait(Call& c, std::uint64_t address, std::uint64_t value, unsigned flags, bool wide, Step& node) {
  // CU_STREAM_WAIT_VALUE_FLUSH needs a device that can flush remote writes, which the attribute denies.
  refuse_if((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0, CUDA_ERROR_NOT_SUPPORTED);
  refuse_if(!allows(Fn::cuStreamWaitValue32_v2, 3, flags), CUDA_ERROR_INVALID_VALUE);
  locate_word(c, address, wide, false, node);
  // A word that a kernel should have written would be waited for without an end.
  const auto unknown_word = [&machine = c.machine, address, size = wide ? 8U : 4U] {
    return machine.unknown.parts(bytes_at(machine, address, size), 0, size);
  };
  node.marks = [&machine = c.machine, unknown_word](Work& work) {
    const auto parts = unknown_word();
    if (const FailurePtr failure = parts.empty() ? nullptr : machine.unknown.read(parts.front().kernel)) {
      work.fail(failure);
    }
  };
  node.until = [&machine = c.machine, address, value, flags, wide, unknown_word] {
    return !unknown_word().empty() ||
           with_word(machine, address, wide, [&](auto word) { return is_reached(word.load(), value, flags, wide); });
  };
}

void plan_write(Call& c, std::uint64_t address, std::uint64_t value, unsigned flags, bool wide, Step& node) {
  refuse_if(!allows(Fn::cuStreamWriteValue32_v2, 3, flags), CUDA_ERROR_INVALID_VALUE);
  return plan_change(c, address, wide, node,
                     [value](auto word) { word.store(static_cast<typename decltype(word)::value_type>(value)); });
}

void plan_reduction(Call& c, const CUstreamBatchMemOpParams& operation, Step& node) {
  const auto& wanted = operation.atomicReduction;
  const bool wide = wanted.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64;
  refuse_if(wanted.flags != 0 || (!wide && wanted.dataType != CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32),
            CUDA_ERROR_INVALID_VALUE);
  const auto plan = [&](auto change) {
    return plan_change(c, wanted.address, wide, node, [value = wanted.value, change](auto word) {
      change(word, static_cast<typename decltype(word)::value_type>(value));
    });
  };
  switch (wanted.reductionOp) {
    case CU_STREAM_ATOMIC_REDUCTION_OP_OR:
      return plan([](auto word, auto value) { word.fetch_or(value); });
    case CU_STREAM_ATOMIC_REDUCTION_OP_AND:
      return plan([](auto word, auto value) { word.fetch_and(value); });
    case CU_STREAM_ATOMIC_REDUCTION_OP_ADD:
      return plan([](auto word, auto value) { word.fetch_add(value); });
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

void plan(Call& c, const CUstreamBatchMemOpParams& operation, Step& node) {
  const bool wide =
      operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  const auto& words = operation.waitValue;  // writes have the same fields
  const std::uint64_t value = wide ? words.value64 : words.value;
  node.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return plan_wait(c, words.address, value, words.flags, wide, node);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return plan_write(c, words.address, value, words.flags, wide, node);
    case CU_STREAM_MEM_OP_BARRIER:
      return refuse_if(operation.memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU, CUDA_ERROR_INVALID_VALUE);
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
      refuse_if(c.version() < 13000, CUDA_ERROR_INVALID_VALUE);
      return plan_reduction(c, operation, node);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      refuse(CUDA_ERROR_NOT_SUPPORTED);
    default:
      refuse(CUDA_ERROR_INVALID_VALUE);
  }
}

// All of the operations, or none.
void carry_out_all(Call& c, Stream& stream, unsigned count, CUstreamBatchMemOpParams* operations) {
  std::vector<GraphNode> nodes(count);
  for (unsigned i = 0; i < count; ++i) {
    plan(c, operations[i], nodes[i]);
  }
  for (GraphNode& node : nodes) {
    enqueue(c, stream, std::move(node));
  }
}

template <CUstreamBatchMemOpType type>
void carry_out_one(Call& c, Stream& stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return carry_out_all(c, stream, 1, &operation);
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_ROW(cuStreamWaitValue32_v2, carry_out_one<CU_STREAM_MEM_OP_WAIT_VALUE_32>)
SOFTWARE_DRIVER_ROW(cuStreamWaitValue64_v2, carry_out_one<CU_STREAM_MEM_OP_WAIT_VALUE_64>)
SOFTWARE_DRIVER_ROW(cuStreamWriteValue32_v2, carry_out_one<CU_STREAM_MEM_OP_WRITE_VALUE_32>)
SOFTWARE_DRIVER_ROW(cuStreamWriteValue64_v2, carry_out_one<CU_STREAM_MEM_OP_WRITE_VALUE_64>)
SOFTWARE_DRIVER_ROW(cuStreamBatchMemOp_v2, carry_out_all)

// Recorded: the first versions of these functions are switched off, as their attributes say.
SOFTWARE_DRIVER_CALL(cuStreamWaitValue32, Call&, const Stream&) { refuse(CUDA_ERROR_NOT_SUPPORTED); }
SOFTWARE_DRIVER_SAME(cuStreamWaitValue64, cuStreamWaitValue32)
SOFTWARE_DRIVER_SAME(cuStreamWriteValue32, cuStreamWaitValue32)
SOFTWARE_DRIVER_SAME(cuStreamWriteValue64, cuStreamWaitValue32)
SOFTWARE_DRIVER_SAME(cuStreamBatchMemOp, cuStreamWaitValue32)
