// Marks on memory wherever it stands, and the decisions about reads of it.
#include "machine/unknown.hpp"

#include <cstdio>

namespace software_driver {

std::vector<MarkTable::Part> Unknown::parts(const Bytes& bytes, std::uint64_t at, std::uint64_t size) const {
  std::vector<MarkTable::Part> found;
  std::uint64_t before = 0;
  bytes.each_place(at, size, [&](const File* file, std::uint64_t begin, std::uint64_t length) {
    MarkTable* const table = file != nullptr ? file->existing_marks() : of_host_.get();
    if (table != nullptr) {
      for (MarkTable::Part& part : table->parts(begin, length)) {
        part.offset += before;
        found.push_back(std::move(part));
      }
    }
    before += length;
  });
  return found;
}

void Unknown::mark(const Bytes& bytes, std::uint64_t at, std::uint64_t size, const std::string& kernel) {
  bytes.each_place(at, size, [&](const File* file, std::uint64_t begin, std::uint64_t length) {
    (file != nullptr ? file->marks() : of_host()).mark(begin, length, kernel);
  });
}

void Unknown::clear(const Bytes& bytes, std::uint64_t at, std::uint64_t size) {
  bytes.each_place(at, size, [&](const File* file, std::uint64_t begin, std::uint64_t length) {
    if (MarkTable* const table = file != nullptr ? file->existing_marks() : of_host_.get()) {
      table->clear(begin, length);
    }
  });
}

MarkTable& Unknown::of_host() {
  if (!of_host_) {
    of_host_ = std::make_unique<MarkTable>();
  }
  return *of_host_;
}

FailurePtr Unknown::read(const std::string& kernel) {
  const auto why = reasons_.find(kernel.substr(0, named_by));
  const std::string reason = "it reads memory that kernel " + kernel + " writes, and the kernel was not executed" +
                             (why == reasons_.end() ? std::string() : " (" + why->second + ")") +
                             ": register a function for the kernel, or the arguments that it writes";
  return is_refused(reason) ? std::make_shared<Failure>(CUDA_ERROR_NOT_SUPPORTED, reason) : nullptr;
}

bool Unknown::refuses_time(const std::string& kernel, const char* function) {
  const std::string reason = "the time includes kernel " + kernel + ", whose duration is not known: register its cost";
  if (!is_refused(reason)) {
    return false;
  }
  say_failure(function, {CUDA_ERROR_NOT_SUPPORTED, reason});
  return true;
}

bool Unknown::is_refused(const std::string& reason) {
  if (policy_ == UnknownPolicy::warn && warnings_.insert(reason).second) {
    std::fprintf(stderr, "software driver (simulated): the program goes on with an unknown value: %s\n",
                 reason.c_str());
  }
  return policy_ == UnknownPolicy::error;
}

void say_failure(const char* function, const Failure& failure) {
  std::fprintf(stderr, "software driver (simulated): %s fails: %s\n", function, failure.reason.c_str());
}

}  // namespace software_driver
