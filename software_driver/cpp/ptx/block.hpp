// Blocks of threads that execute a kernel: warps that diverge and meet again, barriers, memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ptx/run.hpp"

namespace software_driver::ptx {

// Consecutive bytes of memory that a kernel may use.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // equal to `begin`: there is no such memory
  char* host = nullptr;   // where the interpreter reaches the first byte
  bool is_writable = true;
  bool is_watched = false;  // each access is reported
};

// The things outside of its block that a kernel reaches.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // The memory around an address.
  virtual Span find(std::uint64_t address) = 0;
  virtual void print(const std::string& text) = 0;
  virtual void set_condition(std::uint64_t handle, std::uint32_t value) = 0;
  // malloc and free of kernels. 0 where there is no room.
  virtual std::uint64_t allocate(std::uint64_t size) = 0;
  virtual void release(std::uint64_t address) = 0;
  // Accesses to watched memory.
  virtual void reads(std::uint64_t address, std::size_t size) = 0;
  virtual void writes(std::uint64_t address, std::size_t size) = 0;
};

// Windows of generic addresses.
inline constexpr std::uint64_t shared_window = std::uint64_t{1} << 56;
inline constexpr std::uint64_t local_window = std::uint64_t{2} << 56;
inline constexpr std::uint64_t parameter_window = std::uint64_t{3} << 56;
inline constexpr std::uint64_t workspace_window = std::uint64_t{4} << 56;
inline constexpr std::uint64_t function_window = std::uint64_t{5} << 56;  // of numbers of functions
inline constexpr std::uint64_t window_mask = std::uint64_t{0xff} << 56;

// The rates of a card that times come from.
struct Rates {
  double clock_ghz = 1;
  unsigned sms = 1;
};
// A warp issues an instruction in so many cycles, and an SM so many in one. Assumed.
inline constexpr unsigned cycles_of_instruction = 4;
inline constexpr unsigned issued_per_cycle = 4;

// A kernel with its arguments, ready to run its blocks.
struct Kernel {
  std::shared_ptr<const Program> program;
  const Function* entry = nullptr;
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> threads{1, 1, 1};
  std::array<unsigned, 3> cluster{1, 1, 1};
  std::vector<unsigned char> parameters;
  std::uint32_t static_shared = 0;
  std::uint32_t dynamic_shared = 0;
  std::uint32_t local_bytes = 0;  // of a thread, for all functions that may be active at once
  std::vector<std::uint32_t> constants;
  // The counter of grid-wide barriers, which all blocks share.
  std::shared_ptr<std::array<std::uint32_t, 16>> workspace;
  std::uint64_t grid_id = 0;
  Rates rates;

  std::size_t thread_count() const noexcept { return std::size_t{threads[0]} * threads[1] * threads[2]; }
};

// Finds the addresses of the variables of a module.
using AddressOf = std::function<std::uint64_t(const ProgramVariable&)>;
// Fills in what depends on the module and the launch. `parameters` has the bytes of the entry's parameters.
void bind(Kernel& kernel, const AddressOf& address_of);

// The result of a turn of a block.
struct Turn {
  std::uint64_t issued = 0;   // instructions of warps
  std::uint64_t longest = 0;  // of the warp with most of them
  std::uint64_t bytes = 0;    // to and from global memory
  std::uint64_t slept_ns = 0;
  bool is_over = false;
  bool is_idle = false;           // it wrote nothing and read only what it had read before
  bool reads_time_alone = false;  // likewise, and nothing but the time
};

struct Frame {
  std::uint32_t pc = 0;
  std::uint32_t frame = 0;
  std::uint32_t local = 0;
  std::uint32_t call = 0;      // index of Program::calls
  std::uint32_t function = 0;  // that called
  bool operator==(const Frame&) const = default;
};

// Lanes of a warp that execute together.
struct Group {
  enum class State : std::uint8_t { ready, barrier, together };
  std::uint32_t mask = 0;
  std::uint32_t pc = 0;
  std::uint32_t frame = 0;  // words from the begin of the warp's registers
  std::uint32_t local = 0;
  std::uint32_t function = 0;
  State state = State::ready;
  std::uint8_t barrier = 0;
  std::uint64_t turn = 0;  // when it last ran
  std::vector<Frame> calls;

  bool meets(const Group& other) const {
    return pc == other.pc && frame == other.frame && calls.size() == other.calls.size() && calls == other.calls;
  }
};

struct Warp {
  unsigned number = 0;
  std::uint32_t all = 0;  // lanes that exist
  std::uint32_t live = 0;
  std::uint32_t carry = 0;
  std::uint64_t issued = 0;
  std::vector<Group> groups;
  std::vector<std::uint32_t> registers;
};

// The deeds of a barrier besides waiting, in Instruction::value.
inline constexpr std::uint32_t barrier_waits = 0;
inline constexpr std::uint32_t barrier_arrives = 1;
inline constexpr std::uint32_t barrier_counts = 2;
inline constexpr std::uint32_t barrier_all = 3;
inline constexpr std::uint32_t barrier_any = 4;

class Block {
 public:
  Block(const Kernel& kernel, Surroundings& surroundings, std::uint64_t index, unsigned smid);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Executes up to about `budget` instructions of warps. Throws Fault.
  Turn run(std::uint64_t budget, std::uint64_t now_ns);
  // The place of the block: that of the first thread that is not over.
  unsigned line() const;

  const Kernel& kernel() const noexcept { return kernel_; }
  const std::array<unsigned, 3>& position() const noexcept { return position_; }
  unsigned smid() const noexcept { return smid_; }
  std::uint64_t now_ns(const Warp& warp) const noexcept;
  std::uint64_t cycles(const Warp& warp) const noexcept;
  Surroundings& surroundings() noexcept { return surroundings_; }

  // The bytes at an address. Throws Fault.
  char* at(const Run& run, Space space, unsigned lane, std::uint64_t address, unsigned size, bool writes);
  char* local_memory(const Warp& warp, unsigned lane) {
    return local_.data() + (std::size_t{warp.number} * warp_lanes + lane) * kernel_.local_bytes;
  }
  // The memory around a global address; the last few are kept.
  const Span& global_span(std::uint64_t address);
  void count_bytes(std::uint64_t bytes) noexcept { turn_.bytes += bytes; }
  void note_write() {
    end_trial();
    wrote_ = true;
  }
  void note_read(std::uint64_t address, std::uint64_t value);
  void note_time() noexcept { waits_ = looks_at_time_ = true; }
  void sleep(std::uint64_t ns) {
    end_trial();
    slept_ = std::max(slept_, ns);
    waits_ = true;
  }
  // Names the kernel, the block and the line that runs.
  std::string place() const;
  std::string text_at(const Run& run, unsigned lane, std::uint64_t address);
  // Memory may have come and gone since the last turn.
  void forget_spans();
  // True if no thread can go on by itself: each waits at a barrier, or repeats a loop that reads the same values again
  // and changes nothing.
  bool is_stuck();
  // The time for which each thread goes on to repeat a loop that reads the time and nothing else; 0 if there is none.
  std::uint64_t time_of_loops(std::uint64_t now_ns);

 private:
  // Ends a trial of a loop, which changes nothing but registers.
  struct Deed {};
  void end_trial() const {
    if (is_trial_) {
      throw Deed{};
    }
  }
  // Runs a warp at another time until it is back at its place, and takes that back. True if it went along the path. An
  // empty path is filled.
  bool repeats(Warp& warp, std::uint64_t now_ns, std::vector<std::uint32_t>& path);

  void run_warp(Warp& warp, std::uint64_t budget);
  void run_group(Warp& warp, std::size_t index, std::uint64_t& budget);
  void follow(Warp& warp, std::size_t index, Run& run, const Instruction& instruction);
  bool choose(Warp& warp, std::size_t& index);
  bool join_waiting(Warp& warp);
  void call(Warp& warp, std::size_t index, Run& run, const Instruction& instruction);
  void call_external(Run& run, const Call& called);
  void give_back(Warp& warp, Group& group);
  void end_lanes(Warp& warp, std::uint32_t mask);
  void arrive(Group& group, Run& run, const Instruction& instruction);
  void open_barrier(unsigned number);

  struct Barrier {
    std::uint32_t arrived = 0;
    std::uint32_t expected = 0;  // 0: all threads that are not over
    std::uint32_t votes = 0;
  };
  struct Seen {
    std::uint64_t address = 0;
    std::uint64_t value = 0;
    const Instruction* instruction = nullptr;
  };

  const Kernel& kernel_;
  Surroundings& surroundings_;
  std::array<unsigned, 3> position_{};
  unsigned smid_;
  std::uint32_t live_ = 0;  // threads that are not over
  std::vector<Warp> warps_;
  std::vector<char> shared_;
  std::vector<char> local_;
  std::array<Barrier, 16> barriers_{};
  std::array<Span, 4> spans_{};
  std::size_t next_span_ = 0;
  std::array<Seen, 64> seen_{};
  std::vector<std::uint32_t> kept_registers_;
  Turn turn_;
  std::uint64_t started_ns_ = 0;  // of the turn
  std::uint64_t slept_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t turns_of_groups_ = 0;
  const Instruction* current_ = nullptr;
  bool wrote_ = false;
  bool fresh_ = false;
  bool waits_ = false;
  bool reads_ = false;
  bool is_trial_ = false;
  bool has_jumped_ = false;
  bool looks_at_time_ = false;  // the warp that runs, since its turn began
};

// Operations that need more of the block than registers: in memory.cpp and warps.cpp.
Operation memory_operation(std::string_view name, Words& words, Instruction& instruction);
Operation warp_operation(std::string_view name, Words& words, Type type, Instruction& instruction);
// Reads of special registers; null for names that are none. Sets how many bits the register has.
Operation special_register(std::string_view name, Instruction& instruction);
// Moves between registers of any width, and vectors.
void move_32(Run& run, const Instruction& i);
void move_64(Run& run, const Instruction& i);
// A format and its arguments in the memory of a kernel, as printf writes them.
std::string formatted(Block& block, const Run& run, unsigned lane, std::uint64_t format, std::uint64_t arguments);

}  // namespace software_driver::ptx
