// Writes JSON text: the few shapes that the control interface answers with.
#pragma once

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace software_driver {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    fresh_ = true;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    separate();
    quote(text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  template <std::integral Number>
  JsonWriter& value(Number number) {
    separate();
    text_ += std::to_string(number);
    return *this;
  }
  JsonWriter& value(bool truth) {
    separate();
    text_ += truth ? "true" : "false";
    return *this;
  }

  // Members of an object: a name and a value, in turn.
  template <class Value, class... More>
  JsonWriter& members(std::string_view name, const Value& of_it, const More&... more) {
    key(name).value(of_it);
    if constexpr (sizeof...(More) > 0) {
      members(more...);
    }
    return *this;
  }
  template <class... Members>
  JsonWriter& object(const Members&... all) {
    return begin_object().members(all...).end_object();
  }
  // `write` writes one element.
  template <class List, class Write>
  JsonWriter& array(const List& list, Write&& write) {
    begin_array();
    for (const auto& one : list) {
      write(one);
    }
    return end_array();
  }

  const std::string& text() const noexcept { return text_; }

 private:
  JsonWriter& open(char bracket) {
    separate();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  void separate() {
    if (!fresh_) {
      text_ += ',';
    }
    fresh_ = false;
  }
  void quote(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char code[8];
        std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
        text_ += code;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace software_driver
