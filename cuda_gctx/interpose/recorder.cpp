// Records what a program does on its GPUs, for cuda-gctx trace. CUDA loads this library into each process that starts
// (CUDA_INJECTION64_PATH). It appends fixed-size records to a file of the process in the folder CUDA_GCTX_TRACE, which
// the command reads at the end: a killed process loses what CUPTI has not flushed, 200 ms at most.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cupti.hpp"
#include "reports.hpp"

namespace {

using namespace gctx::cupti;

constexpr std::size_t buffer_bytes = 256 * 1024;
// Bounds the host memory of records that wait for the disk: 128 MiB. CUPTI drops and counts what finds no buffer.
constexpr int most_buffers = 512;
// Bounds what CUPTI keeps on the device: 40 buffers of 3.2 MB, each of which holds 100,000 records that are not read.
constexpr std::size_t most_device_buffers = 40;
constexpr std::chrono::milliseconds flush_interval{200};
constexpr std::uint32_t format_version = 1;

enum class Tag : std::uint8_t {
  program = 1,  // queued: the process id; graph: 1 if its GPU is simulated; the text: its name
  clock = 2,    // start: CUPTI's time; end: CLOCK_REALTIME at the same moment, in ns; queued: the uncertainty
  context = 3,  // bytes: SMs; graph: 1 if green; correlation: the parent
  text = 4,     // correlation: the number of the text, which follows
  kernel = 5,
  copy = 6,
  fill = 7,
  graph = 8,
  wait = 9,
  launch = 10,   // of a kernel or a graph, by the host
  dropped = 11,  // bytes: how many records
  ended = 12,
  replaced = 13  // another profiler receives the records
};

// A record of a file; tracing/_records.py reads it.
struct Record {
  Tag tag{};
  std::uint8_t size_of_text = 0;  // in units of a record
  std::uint16_t device = 0;
  std::uint32_t context = 0;
  std::uint32_t stream = 0;
  std::uint32_t correlation = 0;
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::uint64_t queued = 0;
  std::uint64_t bytes = 0;
  std::uint32_t name = 0;
  std::uint32_t graph = 0;
};
static_assert(sizeof(Record) == 56);

template <class Function>
class Imported {
 public:
  bool find(void* library, const char* name) {
    function_ = reinterpret_cast<Function*>(dlsym(library, name));
    return function_ != nullptr;
  }
  explicit operator bool() const { return function_ != nullptr; }
  template <class... Arguments>
  int operator()(Arguments... arguments) const {
    return function_(arguments...);
  }

 private:
  Function* function_ = nullptr;
};

struct Functions {
  Imported<int(std::uint64_t*)> get_timestamp;
  Imported<int(Request, Complete)> register_callbacks;
  Imported<int(int)> enable;
  Imported<int(int)> enable_and_dump;
  Imported<int(int)> disable;
  Imported<int(int, std::size_t*, void*)> set_attribute;
  Imported<int(std::uint32_t)> flush;
  Imported<int(std::uint8_t*, std::size_t, std::uint8_t**)> next_record;
  Imported<int(void*, std::uint32_t, std::size_t*)> get_dropped;
  Imported<int(std::uint32_t, std::uint8_t)> enable_driver_call;
  Imported<int(std::uint32_t, std::uint8_t)> enable_runtime_call;
  Imported<int()> finalize;

  bool find(void* library) {
    // Older ones have none of the two.
    enable_driver_call.find(library, "cuptiActivityEnableDriverApi");
    enable_runtime_call.find(library, "cuptiActivityEnableRuntimeApi");
    return get_timestamp.find(library, "cuptiGetTimestamp") &&
           register_callbacks.find(library, "cuptiActivityRegisterCallbacks") &&
           enable.find(library, "cuptiActivityEnable") && enable_and_dump.find(library, "cuptiActivityEnableAndDump") &&
           disable.find(library, "cuptiActivityDisable") && set_attribute.find(library, "cuptiActivitySetAttribute") &&
           flush.find(library, "cuptiActivityFlushAll") && next_record.find(library, "cuptiActivityGetNextRecord") &&
           get_dropped.find(library, "cuptiActivityGetNumDroppedRecords") && finalize.find(library, "cuptiFinalize");
  }
};

struct Settings {
  const char* folder;
  const char* cupti;        // the library to load if the program has loaded none
  bool has_whole_graphs;    // instead of their nodes
  bool is_late;             // CUDA may have started before
  const void* driver_code;  // an address in the driver
};

class Recorder {
 public:
  bool begin(const Settings& settings);
  void finish();
  std::uint64_t time();

 private:
  static void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
  static void take_buffer(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                          std::size_t valid);
  void take(std::uint8_t* buffer, std::size_t valid);
  void add(std::vector<Record>& launches, std::vector<Record>& records, const std::uint8_t* record);
  void add_text(std::vector<Record>& records, Record record, const char* text);
  std::uint32_t number_of(std::vector<Record>& records, const char* name);
  void add_clock(std::vector<Record>& records);
  void append(const std::vector<Record>& records);
  std::size_t dropped_records();
  void add_clock_and_losses(std::vector<Record>& records, std::size_t dropped);
  void switch_kinds(bool on);
  void call_driver();
  void flush_regularly();

  Functions cupti_;
  std::string path_;
  pid_t pid_ = 0;
  std::mutex mutex_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::size_t reversed_ = 0;
  std::size_t lost_ = 0;  // that could not be written
  std::atomic<int> buffers_{0};
  bool has_whole_graphs_ = false;
  bool is_late_ = false;
  int (*driver_version_)(int*) = nullptr;
  std::uint64_t recorded_calls_ = 0;
  std::thread thread_;
  std::condition_variable stop_;
  bool is_running_ = false;
};

Recorder& recorder() {
  static Recorder* const kept = new Recorder;  // CUPTI's threads may outlive static destruction
  return *kept;
}

void* loaded_cupti(const char* path) {
  // The program's own copy, if it has loaded one: a second copy of one name would never be loaded.
  for (const char* name : {"libcupti.so.13", "libcupti.so.12"}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
      return library;
    }
  }
  return path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

void* function_of_driver_at(const void* address, const char* name) {
  Dl_info info{};
  void* const driver = dladdr(address, &info) != 0 && info.dli_fname != nullptr
                           ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                           : nullptr;
  return driver != nullptr ? dlsym(driver, name) : nullptr;
}

bool Recorder::begin(const Settings& settings) {
  void* const library = loaded_cupti(settings.cupti);
  if (library == nullptr || !cupti_.find(library)) {
    gctx::interpose::tell("is not traced: CUPTI could not be loaded");
    return false;
  }
  pid_ = getpid();
  path_ = std::string(settings.folder) + "/" + std::to_string(pid_) + "." + program_invocation_short_name + ".records";
  has_whole_graphs_ = settings.has_whole_graphs;
  is_late_ = settings.is_late;
  names_.clear();
  recorded_calls_ = 0;
  std::size_t limit = most_device_buffers, size = sizeof limit;
  cupti_.set_attribute(device_buffer_limit, &size, &limit);
  if (cupti_.register_callbacks(give_buffer, take_buffer) != success) {
    gctx::interpose::tell("is not traced: another profiler uses CUPTI");
    return false;
  }
  std::vector<Record> records;
  Record first{.tag = Tag::program, .queued = static_cast<std::uint64_t>(pid_), .name = format_version};
  first.graph = function_of_driver_at(settings.driver_code, "softwareDriverTime") != nullptr ? 1 : 0;
  add_text(records, first, program_invocation_short_name);
  add_clock(records);
  append(records);
  if (cupti_.enable_driver_call) {
    driver_version_ =
        reinterpret_cast<int (*)(int*)>(function_of_driver_at(settings.driver_code, "cuDriverGetVersion"));
  }
  switch_kinds(true);
  is_running_ = true;
  thread_ = std::thread(&Recorder::flush_regularly, this);
  return true;
}

void Recorder::switch_kinds(bool on) {
  for (const int kind : {static_cast<int>(context), static_cast<int>(kernel), static_cast<int>(copy),
                         static_cast<int>(fill), static_cast<int>(synchronization)}) {
    on ? is_late_ ? cupti_.enable_and_dump(kind) : cupti_.enable(kind) : cupti_.disable(kind);
  }
  if (has_whole_graphs_) {
    on ? cupti_.enable(graph) : cupti_.disable(graph);
  }
  if (cupti_.enable_driver_call) {
    for (const std::uint32_t call : recorded_driver_calls) {
      cupti_.enable_driver_call(call, static_cast<std::uint8_t>(on));
    }
  }
  if (cupti_.enable_runtime_call) {
    for (const std::uint32_t call : recorded_runtime_calls) {
      cupti_.enable_runtime_call(call, static_cast<std::uint8_t>(on));
    }
  }
}

// Makes a call that CUPTI records. If the record never comes, another profiler receives the records of CUPTI.
void Recorder::call_driver() {
  if (int version = 0; driver_version_ != nullptr) {
    driver_version_(&version);
  }
}

void Recorder::finish() {
  // A forked child has no threads of CUPTI, whose flush would wait for them.
  if (path_.empty() || getpid() != pid_) {
    return;
  }
  std::unique_lock lock(mutex_);
  if (!std::exchange(is_running_, false)) {
    return;
  }
  lock.unlock();
  stop_.notify_all();
  thread_.join();
  lock.lock();
  const std::uint64_t recorded_before = recorded_calls_;
  lock.unlock();
  call_driver();
  cupti_.flush(flush_forced);
  const std::size_t dropped = dropped_records();
  lock.lock();
  const bool is_replaced = recorded_before > 0 && recorded_calls_ == recorded_before;
  std::vector<Record> records;
  add_clock_and_losses(records, dropped);
  if (is_replaced) {
    records.push_back({.tag = Tag::replaced});
  }
  records.push_back({.tag = Tag::ended});
  append(records);
  lock.unlock();
  if (!is_replaced) {
    switch_kinds(false);
    if (is_late_) {
      // The process goes on, and CUPTI makes each launch slower until it is detached (2 us, seen on an H200).
      cupti_.finalize();
    }
  }
}

std::uint64_t Recorder::time() {
  const std::lock_guard lock(mutex_);
  std::uint64_t time = 0;
  return is_running_ && cupti_.get_timestamp(&time) == success ? time : 0;
}

std::size_t Recorder::dropped_records() {
  std::size_t dropped = 0;
  cupti_.get_dropped(nullptr, 0, &dropped);
  return dropped;
}

void Recorder::add_clock_and_losses(std::vector<Record>& records, std::size_t dropped) {
  add_clock(records);
  dropped += std::exchange(reversed_, 0) + std::exchange(lost_, 0);
  if (dropped > 0) {
    records.push_back({.tag = Tag::dropped, .bytes = dropped});
  }
}

void Recorder::flush_regularly() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, flush_interval, [this] { return !is_running_; })) {
    // CUPTI may hold locks of its own while it hands a buffer over.
    lock.unlock();
    call_driver();
    cupti_.flush(0);
    const std::size_t dropped = dropped_records();
    lock.lock();
    std::vector<Record> records;
    add_clock_and_losses(records, dropped);
    append(records);
  }
}

void Recorder::give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  const bool is_free = recorder().buffers_.fetch_add(1) < most_buffers;
  *buffer = is_free ? static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_bytes)) : nullptr;
  *size = *buffer != nullptr ? buffer_bytes : 0;
  if (*buffer == nullptr) {
    recorder().buffers_.fetch_sub(1);
  }
  *most = 0;
}

void Recorder::take_buffer(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  recorder().take(buffer, valid);
  std::free(buffer);
  recorder().buffers_.fetch_sub(1);
}

void Recorder::take(std::uint8_t* buffer, std::size_t valid) {
  const std::lock_guard lock(mutex_);
  std::vector<Record> launches, records;
  for (std::uint8_t* record = nullptr; cupti_.next_record(buffer, valid, &record) == success;) {
    add(launches, records, record);
  }
  launches.insert(launches.end(), records.begin(), records.end());
  append(launches);
}

void Recorder::add(std::vector<Record>& launches, std::vector<Record>& records, const std::uint8_t* record) {
  const auto timed = [&](Tag tag, const Layout& at) {
    Record made{.tag = tag};
    made.start = read<std::uint64_t>(record, at.start);
    made.end = read<std::uint64_t>(record, at.end);
    // CUPTI gives records without times, or with the end before the start, where it could not measure. A graph may
    // have none if its nodes run in several contexts, and then stands at its launch.
    const bool has_place = made.start != 0 || (tag == Tag::graph && cupti_.enable_driver_call);
    if (!has_place || made.end < made.start) {
      ++reversed_;
      return;
    }
    const auto number = [&](std::size_t offset) { return offset == none ? 0 : read<std::uint32_t>(record, offset); };
    made.device = static_cast<std::uint16_t>(number(at.device));
    made.context = number(at.context);
    made.stream = number(at.stream);
    made.correlation = number(at.correlation);
    made.graph = number(at.graph);
    made.bytes = at.bytes == none ? 0 : read<std::uint64_t>(record, at.bytes);
    if (at.name != none) {
      made.name = number_of(records, read<const char*>(record, at.name));
    }
    (tag == Tag::launch ? launches : records).push_back(made);
  };
  switch (read<int>(record, 0)) {
    case kernel:
      return timed(Tag::kernel, of_kernel);
    case copy:
      return timed(Tag::copy, of_copy);
    case fill:
      return timed(Tag::fill, of_fill);
    case graph:
      return timed(Tag::graph, of_graph);
    case synchronization:
      return timed(Tag::wait, of_synchronization);
    case driver:
      if (read<std::uint32_t>(record, function_of_driver_call) == call_of_version) {
        ++recorded_calls_;
        return;
      }
      return timed(Tag::launch, of_call);
    case runtime:
      return timed(Tag::launch, of_call);
    case context: {
      Record made{.tag = Tag::context};
      made.device = static_cast<std::uint16_t>(ContextFields::device(record));
      made.context = ContextFields::id(record);
      made.correlation = ContextFields::parent(record);
      made.bytes = ContextFields::sm_count(record);
      made.graph = ContextFields::is_green(record) ? 1 : 0;
      records.push_back(made);
      return;
    }
    default:
      return;
  }
}

void Recorder::add_text(std::vector<Record>& records, Record record, const char* text) {
  const std::size_t length = std::min<std::size_t>(std::strlen(text), 255 * sizeof(Record) - 1);
  const std::size_t units = (length + sizeof(Record)) / sizeof(Record);
  record.size_of_text = static_cast<std::uint8_t>(units);
  records.push_back(record);
  std::vector<char> padded(units * sizeof(Record), '\0');
  std::memcpy(padded.data(), text, length);
  const std::size_t place = records.size();
  records.resize(place + units);
  std::memcpy(static_cast<void*>(&records[place]), padded.data(), padded.size());
}

std::uint32_t Recorder::number_of(std::vector<Record>& records, const char* name) {
  const char* const known = name != nullptr ? name : "?";
  const auto [place, is_new] = names_.try_emplace(known, static_cast<std::uint32_t>(names_.size() + 1));
  if (is_new) {
    add_text(records, {.tag = Tag::text, .correlation = place->second}, known);
  }
  return place->second;
}

void Recorder::add_clock(std::vector<Record>& records) {
  timespec before{}, after{};
  std::uint64_t time = 0;
  clock_gettime(CLOCK_REALTIME, &before);
  cupti_.get_timestamp(&time);
  clock_gettime(CLOCK_REALTIME, &after);
  const auto ns = [](const timespec& at) {
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(at.tv_nsec);
  };
  records.push_back({.tag = Tag::clock,
                     .start = time,
                     .end = ns(before) + (ns(after) - ns(before)) / 2,
                     .queued = (ns(after) - ns(before)) / 2});
}

// Opens the file each time: programs close descriptors that they do not know.
void Recorder::append(const std::vector<Record>& records) {
  if (records.empty()) {
    return;
  }
  const int kept = errno;
  const int out = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const char* next = reinterpret_cast<const char*>(records.data());
  std::size_t left = records.size() * sizeof(Record);
  while (out >= 0 && left > 0) {
    const ssize_t written = write(out, next, left);
    if (written < 0 && errno != EINTR) {
      break;
    }
    next += written > 0 ? written : 0;
    left -= written > 0 ? static_cast<std::size_t>(written) : 0;
  }
  lost_ += left / sizeof(Record);
  if (out >= 0) {
    close(out);
  }
  errno = kept;
}

void finish_at_exit() {
  [[maybe_unused]] static const int registered = std::atexit([] { recorder().finish(); });
}

}  // namespace

#define RECORDER_API extern "C" __attribute__((visibility("default")))

// CUDA calls this when it starts.
RECORDER_API int InitializeInjection() {
  const char* const folder = std::getenv("CUDA_GCTX_TRACE");
  const char* const graphs = std::getenv("CUDA_GCTX_TRACE_GRAPHS");
  if (folder != nullptr && recorder().begin({.folder = folder,
                                             .cupti = std::getenv("CUDA_GCTX_CUPTI"),
                                             .has_whole_graphs = graphs != nullptr && std::strcmp(graphs, "whole") == 0,
                                             .is_late = false,
                                             .driver_code = __builtin_return_address(0)})) {
    finish_at_exit();
  }
  return 1;
}

// Records this process in a folder until cuda_gctx_end_recording(). Returns 0 if CUPTI cannot record.
RECORDER_API int cuda_gctx_begin_recording(const char* folder, const char* cupti, int whole_graphs,
                                           const void* driver_code) {
  const bool begun = recorder().begin({.folder = folder,
                                       .cupti = cupti,
                                       .has_whole_graphs = whole_graphs != 0,
                                       .is_late = true,
                                       .driver_code = driver_code});
  return begun ? 1 : 0;
}

RECORDER_API void cuda_gctx_end_recording() { recorder().finish(); }

// The time of CUPTI's records; 0 if this process is not recorded.
RECORDER_API std::uint64_t cuda_gctx_recorded_time() { return recorder().time(); }
