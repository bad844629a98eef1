// The memory of what went wrong: misuse of objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace software_driver {

enum class Misuse { use_after_destroy, double_destroy, wrong_order, wrong_thread, unknown_handle };
inline constexpr const char* misuse_names[] = {"use after destroy", "double destroy", "wrong order", "wrong thread",
                                               "unknown handle"};

struct MisuseNote {
  Misuse kind;
  const char* function;
  std::uint64_t handle;
  std::uint64_t thread;
  std::uint64_t order;
  std::string detail;
};

struct Ledger {
  std::vector<MisuseNote> notes;
  std::uint64_t dropped = 0;  // notes beyond the first thousand
  std::uint64_t contexts_made = 0;
  std::uint64_t contexts_destroyed = 0;

  void note(MisuseNote note) {
    if (notes.size() < 1000) {
      notes.push_back(std::move(note));
    } else {
      ++dropped;
    }
  }
};

}  // namespace software_driver
