#include "handles/live.hpp"

#include <algorithm>
#include <iterator>

#include "driver/process.hpp"

namespace gctx {
namespace {

// At most this many are named in one message.
constexpr std::size_t most_named = 3;

std::string joined(const std::vector<std::string>& labels) {
  std::string text;
  const std::size_t named = std::min(labels.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i == 0 ? "" : i + 1 == labels.size() ? " and " : ", ") + labels[i];
  }
  return text + (labels.size() > named ? " and " + std::to_string(labels.size() - named) + " more" : "");
}

std::string label_of(const std::string& name, const SmResource& sms, bool closed) {
  return (name.empty() ? "an unnamed context" : "'" + name + "'") + " (" + std::to_string(sms.sm_count) + " SMs" +
         (closed ? ", closed, kept alive by a stream or event" : "") + ")";
}

}  // namespace

std::vector<std::uint64_t> LiveContexts::enlist(int ordinal, const std::vector<SmResourcePtr>& sms,
                                                const std::vector<std::string>& names, bool exclusive, bool only_free,
                                                std::uint64_t group, const std::string& advice, std::string& report) {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.mutex);
  bool certain = false;
  std::vector<char> shares(sms.size());
  std::vector<std::string> others;
  const Entry* owner = nullptr;
  for (const Entry& live : state.live) {
    if (group != 0 && live.group == group) {
      continue;
    }
    bool is_other = false;
    for (std::size_t i = 0; i < sms.size(); ++i) {
      const auto shared = overlaps(*sms[i], *live.sms);
      if (shared.value_or(true)) {
        certain = certain || shared.has_value();
        shares[i] = 1;
        is_other = true;
      }
    }
    if (is_other) {
      others.push_back(label_of(live.name, *live.sms, live.closed));
      owner = live.exclusive ? &live : owner;
    }
  }
  if (!others.empty()) {
    std::vector<std::string> mine;
    for (std::size_t i = 0; i < sms.size(); ++i) {
      if (shares[i] != 0) {
        mine.push_back(label_of(names[i], *sms[i], false));
      }
    }
    report = joined(mine) +
             (!certain           ? " may share"
              : mine.size() == 1 ? " shares"
                                 : " share") +
             " SMs with " + joined(others) +
             (owner != nullptr ? "; " + label_of_context(owner->name) + " has its SMs exclusively" : "") + ": " +
             advice;
    if (exclusive || only_free) {
      fail(ErrorKind::overlap, report);
    }
  }
  std::vector<std::uint64_t> entries;
  std::vector<Entry> entered;
  for (std::size_t i = 0; i < sms.size(); ++i) {
    entries.push_back(next_entry_.fetch_add(1));
    entered.push_back({entries[i], group, exclusive, false, sms[i], names[i]});
  }
  state.live.reserve(state.live.size() + entered.size());  // all of them are entered, or none
  std::move(entered.begin(), entered.end(), std::back_inserter(state.live));
  return entries;
}

std::vector<int> LiveContexts::are_free(int ordinal, const std::vector<SmResourcePtr>& sms) {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  std::vector<int> answers;
  const std::lock_guard lock(state.mutex);
  for (const SmResourcePtr& one : sms) {
    answers.push_back(std::none_of(state.live.begin(), state.live.end(),
                                   [&](const Entry& live) { return overlaps(*one, *live.sms).value_or(true); }));
  }
  return answers;
}

void LiveContexts::note_closed(int ordinal, std::uint64_t entry) noexcept {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.mutex);
  for (Entry& live : state.live) {
    live.closed = live.closed || live.number == entry;
  }
}

void LiveContexts::delist(int ordinal, std::uint64_t entry) noexcept {
  if (is_forked()) {
    return;
  }
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  const std::lock_guard lock(state.mutex);
  std::erase_if(state.live, [&](const Entry& live) { return live.number == entry; });
}

ContextCounts LiveContexts::counts(int ordinal) const {
  const Device& state = devices_[static_cast<std::size_t>(ordinal)];
  return {state.made.load(), state.destroyed.load()};
}

}  // namespace gctx
