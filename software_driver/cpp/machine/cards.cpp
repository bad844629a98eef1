// Identities of cards, and the rules of CUDA_VISIBLE_DEVICES.
#include "machine/cards.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace software_driver {
namespace {

// The card that an entry names, or -1.
int card_named(const Profile& profile, int count, const std::string& entry) {
  if (!entry.starts_with("GPU-")) {
    char* end = nullptr;
    const long index = std::strtol(entry.c_str(), &end, 10);  // what follows the digits does not matter
    return end != entry.c_str() && index >= 0 && index < count ? static_cast<int>(index) : -1;
  }
  // So much of an identity that only one card has it.
  int found = -1;
  for (int card = 0; card < count; ++card) {
    if (uuid_text(uuid(profile, card)).starts_with(entry)) {
      if (found >= 0) {
        return -1;
      }
      found = card;
    }
  }
  return found;
}

}  // namespace

std::string pci_bus_id(int card) {
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(first_pci_bus + card));
  return text;
}

CUuuid uuid(const Profile& profile, int card) {
  // Says what it is to whoever looks at the bytes: "SIM", then the number of the card and its kind. The number comes
  // early, so that a few digits name a card.
  CUuuid id{};
  std::memcpy(id.bytes, "SIM", 3);
  id.bytes[3] = static_cast<char>(card + 1);
  std::memcpy(id.bytes + 4, profile.key.data(), std::min<std::size_t>(profile.key.size(), sizeof id.bytes - 4));
  return id;
}

std::string uuid_text(const CUuuid& id) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof id.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return text;
}

std::vector<int> visible_cards(const Profile& profile, int count, const std::optional<std::string>& names) {
  if (!names) {
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::vector<int> visible;
  for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = names->find(',', at);
    const int card = card_named(profile, count, names->substr(at, end - at));
    if (card < 0) {
      break;
    }
    if (std::ranges::find(visible, card) != visible.end()) {
      return {};
    }
    visible.push_back(card);
  }
  return visible;
}

}  // namespace software_driver
