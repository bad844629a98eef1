// How Cython calls the core. A call works without the GIL, on handles of its own, and drops them before the GIL comes
// back, so that no driver object is destroyed while all of Python waits. What it throws is caught where it was thrown:
// Python raises it with the GIL, after the ordinary end of the region without it. Nothing is in flight while the
// interpreter gives the GIL back, because a thread that comes too late, at exit, ends right there.
#pragma once

#include <Python.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "driver/error.hpp"
#include "handles/current.hpp"
#include "handles/slot.hpp"
#include "handles/types.hpp"

namespace gctx {

#ifdef Py_GIL_DISABLED
template <typename Box>
using ObjectSlot = Slot<Box>;
#else
template <typename Box>
using ObjectSlot = LockedSlot<Box>;
#endif
template <typename Box>
using ObjectBorrowed = typename ObjectSlot<Box>::Borrowed;

namespace calls {

// Makes the Python exception, as _core/errors.pyx does.
inline void raise(const std::exception_ptr& failure) {
  using Raise = int (*)(const std::exception_ptr&);
  void* const found = PyCapsule_Import("cuda_gctx._core.errors.raise_failure", 0);
  if (found != nullptr) {
    reinterpret_cast<Raise>(found)(failure);
  }
}

// What a call works on: a handle out of a slot; handles that the caller gives away; and what the caller keeps.
template <typename Place>
class Held {
 public:
  explicit Held(const BasicSlot<Place>& slot) : slot_(slot), box_(slot.get()) {}
  const typename Place::Handle& get() const {
    if (!box_) [[unlikely]] {
      slot_.fail_empty();
    }
    return box_;
  }

 private:
  const BasicSlot<Place>& slot_;
  typename Place::Handle box_;
};
template <typename Given>
struct Taken {
  Given given;
  Given& get() { return given; }
};
template <typename Given>
struct Kept {
  Given& given;
  Given& get() { return given; }
};

template <typename Place>
Held<Place> hold(BasicSlot<Place>& slot) {
  return Held<Place>(slot);
}
template <typename Box>
  requires(!std::is_const_v<Box>)
Taken<std::vector<std::shared_ptr<Box>>> hold(std::vector<std::shared_ptr<Box>>& handles) {
  return {std::move(handles)};
}
template <typename Given>
Kept<std::remove_reference_t<Given>> hold(Given&& given) {
  return {given};
}

// Calls without the GIL; true unless it failed, and then the Python exception is set.
template <typename Work, typename Holds>
bool work_without_gil(Work&& work, std::optional<Holds>& holds) {
  std::exception_ptr failure;
  PyThreadState* const thread = PyEval_SaveThread();
  try {
    std::apply([&](auto&... each) { work(each.get()...); }, *holds);
  } catch (...) {
    failure = std::current_exception();
  }
  holds.reset();
  PyEval_RestoreThread(thread);
  if (failure) [[unlikely]] {
    raise(failure);
  }
  return !failure;
}

template <typename... Arguments>
using Holds = std::tuple<decltype(hold(std::declval<Arguments&>()))...>;

}  // namespace calls

// Calls a function of the core. Its result, as a number if it is none or a truth value, and as a pointer if it is a
// reference; after a failure -1, or what has no value.
template <auto function, typename... Arguments>
auto call(Arguments&&... arguments) {
  std::optional<calls::Holds<Arguments...>> holds(std::in_place, calls::hold(arguments)...);
  const auto run = [&](auto&&... each) -> decltype(auto) { return std::invoke(function, each...); };
  using Result = decltype(std::apply([&](auto&... each) -> decltype(auto) { return run(each.get()...); }, *holds));
  if constexpr (std::is_void_v<Result>) {
    return calls::work_without_gil(run, holds) ? 0 : -1;
  } else if constexpr (std::is_same_v<Result, bool>) {
    bool answer = false;
    return calls::work_without_gil([&](auto&&... each) { answer = run(each...); }, holds) ? int{answer} : -1;
  } else if constexpr (std::is_lvalue_reference_v<Result>) {
    std::remove_reference_t<Result>* answer = nullptr;
    calls::work_without_gil([&](auto&&... each) { answer = &run(each...); }, holds);
    return answer;
  } else {
    Result answer{};
    calls::work_without_gil([&](auto&&... each) { answer = run(each...); }, holds);
    return answer;
  }
}

// Drops a handle, whose box may be the last use of a driver object. Whether there was one.
template <typename Box>
bool drop(std::shared_ptr<Box> handle) {
  std::optional<std::tuple<calls::Taken<std::shared_ptr<Box>>>> holds(std::in_place, std::tuple{std::move(handle)});
  return std::get<0>(*holds).given && calls::work_without_gil([](auto&&...) {}, holds);
}
template <typename Box>
bool drop(ObjectSlot<Box>& slot) {
  return drop(slot.take());
}

// Leaves a block with the GIL, if that is quick: see leave_block_at_once(). `slot` is that of the object of its
// context: as long as it has the same handle, it is not the last one that is dropped here.
inline bool leave_at_once(Entry& entry, const void* task, ObjectSlot<ContextBox>& slot) noexcept {
  ContextHandle context;
  if (!leave_block_at_once(entry, task, context)) {
    return false;
  }
  if (slot.borrow().get() != context.get()) {
    drop(std::move(context));
  }
  return true;
}

// Ends what the thread made current in one step for all who hold the GIL, but for what takes long.
inline void end_thread() {
  std::optional<std::tuple<calls::Taken<std::vector<ContextHandle>>>> holds(std::in_place,
                                                                            std::tuple{end_this_thread_at_once()});
  calls::work_without_gil([](auto&&...) { end_this_thread(); }, holds);
}

// Calls a function that makes a handle, and puts it into a slot. 1, or 0 if there is none, or -1.
template <auto function, typename Box, typename... Arguments>
int make(ObjectSlot<Box>& slot, Arguments&&... arguments) {
  std::optional<calls::Holds<Arguments...>> holds(std::in_place, calls::hold(arguments)...);
  std::shared_ptr<Box> made;
  if (!calls::work_without_gil([&](auto&&... each) { made = std::invoke(function, each...); }, holds)) {
    return -1;
  }
  if (slot.was_filled()) {  // by another call of __init__
    std::optional<std::tuple<calls::Taken<std::shared_ptr<Box>>>> unwanted(std::in_place, std::tuple{std::move(made)});
    calls::work_without_gil(
        [](auto&&...) {
          fail_state(std::string("this ") + Box::word + " has been initialised already: make another object");
        },
        unwanted);
    return -1;
  }
  if (!made) {
    return 0;
  }
  slot.put(std::move(made));
  return 1;
}

// The box of a slot, for what is done before the GIL is given up; null, and the Python exception is set, if the object
// has been closed.
template <typename Box>
ObjectBorrowed<Box> present(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.borrow();
  if (!box) [[unlikely]] {
    try {
      slot.fail_empty();
    } catch (...) {
      calls::raise(std::current_exception());
    }
  }
  return box;
}

// The same of an object that must still be of use: of a driver that may be called, and of a context that is open.
template <typename Box>
ObjectBorrowed<Box> live(ObjectSlot<Box>& slot) {
  ObjectBorrowed<Box> box = slot.borrow();
  try {
    if (box && !box.get()->asks_driver()) [[likely]] {
      box.get()->demand_live();
      return box;
    }
  } catch (...) {
    calls::raise(std::current_exception());
    return {};
  }
  if (call<&Box::demand_live>(slot) != 0) {
    return {};
  }
  return present(slot);
}

// Puts the context of an object into the slot of another one. -1 if the object has been closed.
template <typename Box>
int share_context(ObjectSlot<ContextBox>& slot, ObjectSlot<Box>& of) {
  const ObjectBorrowed<Box> box = present(of);
  if (!box) {
    return -1;
  }
  slot.put(box.get()->context());
  return 0;
}

}  // namespace gctx
