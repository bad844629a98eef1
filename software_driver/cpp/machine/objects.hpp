// The objects that a program makes on a machine, and the devices that it finds there.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/abi.hpp"
#include "chip/chip.hpp"
#include "machine/graph.hpp"
#include "machine/handles.hpp"
#include "machine/memory.hpp"
#include "machine/thread_times.hpp"
#include "machine/unknown.hpp"
#include "machine/work.hpp"
#include "ptx/program.hpp"

namespace software_driver {

// What a set of SMs carries from the split that made it: the alignment that a context reports (0: the device's own),
// and how the SMs hold together.
struct Traits {
  unsigned alignment = 0;
  Bond bond = Bond::gpc;
};

struct Context;

struct Stream : Object {
  Context* context = nullptr;  // null once the context is destroyed
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool is_of_green_call = false;  // made by cuGreenCtxStreamCreate
  std::shared_ptr<QueueSet> queues;
  Connection* connection = nullptr;
  WorkPtr last;
  std::shared_ptr<Capture> capture;
  std::vector<Edge> capture_tail;
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;  // set by the program; the priority is above
};

struct Event : Object {
  int device = 0;
  std::uint64_t root_id = 0;   // of that context's primary (or itself): events do not cross it when recorded
  Context* context = nullptr;  // null once the context is destroyed
  bool is_gone = false;        // destroyed by a reset of its device, but its handle is remembered
  unsigned flags = 0;
  WorkPtr record;  // null until recorded
  std::shared_ptr<SharedRecord> shared;
  std::shared_ptr<Capture> capture;
  std::vector<Edge> captured;
};

enum class ContextKind { primary, created, green };

struct Workqueue {
  unsigned limit = 0;
  CUdevWorkqueueConfigScope scope = CU_WORKQUEUE_SCOPE_DEVICE_CTX;
};

// The part of a device that a context has, or that a descriptor describes.
struct Holding {
  int device = 0;
  SmSet sms;
  unsigned sm_count = 0;  // as reported: counts a group that is listed twice twice, as the hardware's driver does
  Traits traits;
  unsigned resource_flags = 0;  // of the structured split that made it
  unsigned locality_domain = 0;
  Workqueue workqueue;
  std::shared_ptr<QueueSet> queues;  // of a descriptor: those of an existing workqueue that is to be shared
};

// A CUcontext: a device's primary, one made by cuCtxCreate, or a green context, whose CUgreenCtx and CUcontext are the
// same address (recorded).
struct Context : Object, Holding {
  ContextKind kind = ContextKind::primary;
  std::uint64_t root_id = 0;
  unsigned flags = 0;
  unsigned api_version = 3020;
  std::map<CUlimit, std::size_t> limits;
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  std::set<int> peers;
  std::set<Stream*> streams;  // without the default ones
  std::set<Event*> events;
  WorkPtr gate;  // what all further work waits for (cuCtxWaitEvent)
  std::unique_ptr<Stream> default_stream;
  std::unordered_map<std::uint64_t, std::unique_ptr<Stream>> thread_streams;  // by serial number of the thread

  bool is_green() const noexcept { return kind == ContextKind::green; }
};

struct Descriptor : Object, Holding {
  bool has_device = false;
  bool has_sms = false;
  std::uint32_t source = 0;  // the query that its SMs go back to
  std::uint32_t split = 0;   // the call that made them
  bool has_workqueue = false;
};

struct Pool : Object {
  int device = 0;  // -1: of the host
  bool managed = false;
  CUmemLocation location{};
  std::uint64_t max_size = 0;                 // 0: no limit
  std::map<CUmemPool_attribute, int> reuses;  // that are allowed or not; at first all are
  std::uint64_t release_threshold = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  std::map<int, CUmemAccess_flags> access;  // of other devices
};

// Of one place: its own, and the one that allocations come from.
struct Pools {
  Pool* standard = nullptr;
  Pool* current = nullptr;
};

// What the program said of a piece of managed memory.
struct ManagedRange {
  bool read_mostly = false;
  CUmemLocation preferred{};
  CUmemLocation prefetched{};
  std::set<CUdevice> accessed_by;
};

// Memory of cuMemCreate.
struct MemoryHandle : Object {
  CUmemAllocationProp properties{};
  std::uint64_t size = 0;
  Storage storage;
  unsigned references = 1;
  unsigned mappings = 0;
  bool imported = false;
};

// Addresses of cuMemAddressReserve.
struct AddressRange : Object {
  template <class... Arguments>
  explicit AddressRange(Arguments... arguments) : range(arguments...) {}
  Reservation range;
};

struct Module;

struct Allocation : Object {
  std::size_t size = 0;
  int device = 0;
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  bool registered = false;  // the caller's own memory
  bool freeing = false;     // a stream-ordered free is under way
  bool managed = false;
  ManagedRange range;
  bool is_of_kernels = false;   // made by malloc of a kernel
  bool live = true;             // false between the launches of the graph that allocates it
  bool freed_in_graph = false;  // by a node of the graph that allocates it
  int graphs = 0;               // that allocate it, executable ones included
  unsigned flags = 0;
  Pool* pool = nullptr;
  std::uint64_t context_id = 0;
  const Module* module = nullptr;           // whose variable it is
  MemoryHandle* mapped = nullptr;           // what cuMemMap has put here
  std::map<int, CUmemAccess_flags> access;  // by device, of what is mapped
  unsigned opened = 0;                      // how often, of memory of another process
  std::string opened_as;
  Storage storage;
};

// PTX of an image. It is decoded when one of its kernels is first launched.
class PtxCode {
 public:
  explicit PtxCode(std::string text) : text_(std::move(text)) {}
  const std::shared_ptr<const ptx::Program>& program() {
    if (!program_) {
      program_ = ptx::Program::read(text_);
    }
    return program_;
  }

 private:
  std::string text_;
  std::shared_ptr<const ptx::Program> program_;
};

// What an image says of a kernel. Shared, because queued work outlives its module.
struct KernelCode {
  std::string name;
  std::vector<std::size_t> argument_sizes;
  std::vector<std::size_t> argument_offsets;
  bool arguments_known = false;
  std::shared_ptr<PtxCode> ptx;                     // null for machine code alone
  std::map<CUfunction_attribute, int> attributes;   // of the image, or set of the kernel
  std::map<CUfunction_attribute, int> of_function;  // set of the function, before or after: these count
};

// A variable of the device, as its image declares it.
struct Variable {
  std::string name;
  std::size_t size = 0;
  std::string initial;  // as many of its bytes as are not zero
  bool is_constant = false;
  bool is_managed = false;
};

struct Image {
  CUresult code = CUDA_SUCCESS;  // of what is done with it when it is first used
  std::vector<std::shared_ptr<KernelCode>> kernels;
  std::vector<Variable> variables;
};

// A link of several inputs into one image.
struct Link : Object {
  std::string image;
  bool is_complete = false;
};

struct Library;
struct Function;
struct Kernel;

struct Module : Object {
  int device = 0;
  Library* library = nullptr;
  std::shared_ptr<Image> image;
  std::map<std::string, Function*, std::less<>> functions;
  std::map<std::string, std::uint64_t, std::less<>> variables;  // addresses of those that were asked for
  std::string written_by;                                       // the last kernel that may have changed its variables
};

struct Function : Object {
  Module* module = nullptr;
  std::shared_ptr<KernelCode> code;
};

struct Library : Object {
  std::shared_ptr<Image> image;
  std::map<std::string, Kernel*, std::less<>> kernels;
  std::map<int, Module*> modules;                                       // by device
  std::map<std::string, std::uint64_t, std::less<>> managed_variables;  // of all devices, as in Module::variables
};

struct Kernel : Object {
  Library* library = nullptr;
  std::shared_ptr<KernelCode> code;
};

// Memory of graphs. What was freed counts as used until it is trimmed, or until a graph needs memory.
struct GraphMemory {
  std::uint64_t used = 0;
  std::uint64_t freed = 0;
  std::uint64_t used_high = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
};

struct Device {
  Storage take(std::uint64_t size);
  std::uint64_t resident() const;  // what the contents of its memory take of the host's

  const Chip* chip = nullptr;
  int ordinal = 0;  // among those that the program may use
  int card = 0;     // among those of the machine
  std::uint64_t memory = 0;
  std::shared_ptr<Arena> arena;                // from the first allocation on
  std::vector<std::weak_ptr<File>> shareable;  // memory that other processes can import
  std::uint64_t allocated = 0;
  std::uint64_t lost = 0;
  unsigned long long retains = 0;  // of the primary context, by callers
  std::size_t green_contexts = 0;  // each retains the primary too
  unsigned primary_flags = 0;
  Context* primary = nullptr;
  std::uint64_t primary_handle = 0;  // the same for every primary context of the device (seen on an H100)
  Pools pools;
  GraphMemory graph_memory;
  FailurePtr fault;  // of a kernel; all further calls answer it
  std::shared_ptr<QueueSet> queues;
};

// What is current to a thread. Entries name the context by id too, so that a recycled handle is not taken for it.
struct CurrentContext {
  std::uint64_t handle = 0;
  std::uint64_t id = 0;  // 0 if it was gone already when it was made current
  int device = 0;
  unsigned flags = 0;
};

struct ThreadState {
  std::vector<CurrentContext> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t serial = 0;
  ThreadTime time;
};

}  // namespace software_driver
