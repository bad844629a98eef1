#include "handles/sm_claims.hpp"

#include <algorithm>
#include <utility>

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

std::string label_of(const std::string& name, const SmResource& sms, bool is_closed) {
  return (name.empty() ? "an unnamed context" : "'" + name + "'") + " (" + std::to_string(sms.sm_count) + " SMs" +
         (is_closed ? ", closed, and kept by a stream or an executable graph" : "") + ")";
}

}  // namespace

Claim::Claim(Runtime& runtime, int device, std::vector<SmResourcePtr> sms, std::vector<std::string> names, Terms terms)
    : device_(sm_claims(runtime).devices_[static_cast<std::size_t>(device)]),
      sms_(std::move(sms)),
      names_(std::move(names)),
      terms_(std::move(terms)) {
  const std::lock_guard lock(device_.mutex);
  bool certain = false;
  std::vector<char> shares(sms_.size());
  std::vector<std::string> others;
  const std::string* owner = nullptr;
  for (const Claim* claim : device_.claims) {
    if (claim == terms_.inside || (terms_.group != nullptr && claim->terms_.group == terms_.group)) {
      continue;
    }
    for (std::size_t at = 0; at < claim->sms_.size(); ++at) {
      bool is_other = false;
      for (std::size_t i = 0; i < sms_.size(); ++i) {
        const auto shared = overlaps(*sms_[i], *claim->sms_[at]);
        if (shared.value_or(true)) {
          certain = certain || shared.has_value();
          shares[i] = 1;
          is_other = true;
        }
      }
      if (is_other) {
        others.push_back(label_of(claim->names_[at], *claim->sms_[at], claim->is_closed_));
        owner = claim->terms_.exclusive ? &claim->names_[at] : owner;
      }
    }
  }
  if (!others.empty()) {
    std::vector<std::string> mine;
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      if (shares[i] != 0) {
        mine.push_back(label_of(names_[i], *sms_[i], false));
      }
    }
    overlap_report_ = joined(mine) +
                      (!certain           ? " may share"
                       : mine.size() == 1 ? " shares"
                                          : " share") +
                      " SMs with " + joined(others) +
                      (owner != nullptr ? "; " + label_of_context(*owner) + " has its SMs exclusively" : "") + ": " +
                      terms_.advice;
    if (terms_.exclusive || terms_.only_free) {
      fail(ErrorKind::overlap, overlap_report_);
    }
  }
  device_.claims.push_back(this);
}

void Claim::note_closed() noexcept {
  const std::lock_guard lock(device_.mutex);
  is_closed_ = true;
}

void Claim::release() noexcept {
  if (!is_forked()) {
    const std::lock_guard lock(device_.mutex);
    std::erase(device_.claims, this);
  }
}

std::vector<int> SmClaims::are_free(int ordinal, const std::vector<SmResourcePtr>& sms) {
  Device& state = devices_[static_cast<std::size_t>(ordinal)];
  std::vector<int> answers;
  const std::lock_guard lock(state.mutex);
  for (const SmResourcePtr& one : sms) {
    const auto is_taken = [&](const SmResourcePtr& taken) { return overlaps(*one, *taken).value_or(true); };
    answers.push_back(std::none_of(state.claims.begin(), state.claims.end(), [&](const Claim* claim) {
      return std::any_of(claim->sms_.begin(), claim->sms_.end(), is_taken);
    }));
  }
  return answers;
}

}  // namespace gctx
