#include "reports.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace gctx::interpose {

namespace {

// The name of the program, without the characters that JSON would need to escape.
std::string program_name() {
  std::string name = program_invocation_short_name;
  for (char& character : name) {
    if (character == '"' || character == '\\' || static_cast<unsigned char>(character) < 0x20) {
      character = '?';
    }
  }
  return name;
}

}  // namespace

void report(const char* members, ...) {
  const char* const path = std::getenv("CUDA_GCTX_REPORTS");
  sockaddr_un address{};
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) {
    return;
  }
  char text[1024];
  int size = std::snprintf(text, sizeof text, "{\"pid\": %d, \"program\": \"%s\", ", static_cast<int>(getpid()),
                           program_name().c_str());
  std::va_list arguments;
  va_start(arguments, members);
  size += std::vsnprintf(text + size, sizeof text - static_cast<std::size_t>(size) - 1, members, arguments);
  va_end(arguments);
  if (static_cast<std::size_t>(size) >= sizeof text - 1) {
    return;
  }
  text[size++] = '}';
  // A new socket for each message: programs close descriptors that they do not know.
  const int out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (out < 0) {
    return;
  }
  // The socket of the command holds ten messages. A command that does not read them holds a program up for this long.
  const timeval limit{.tv_sec = 1, .tv_usec = 0};
  setsockopt(out, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path);
  const int kept = errno;
  while (sendto(out, text, static_cast<std::size_t>(size), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address),
                sizeof address) < 0 &&
         errno == EINTR) {
  }
  errno = kept;
  close(out);
}

void tell(const char* sentence, ...) {
  char text[1024];
  std::va_list arguments;
  va_start(arguments, sentence);
  std::vsnprintf(text, sizeof text, sentence, arguments);
  va_end(arguments);
  std::fprintf(stderr, "cuda-gctx: process %d (%s): %s\n", static_cast<int>(getpid()), program_invocation_short_name,
               text);
}

const char* caller_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return "unknown code";
  }
  const char* const slash = std::strrchr(info.dli_fname, '/');
  return slash != nullptr ? slash + 1 : info.dli_fname;
}

bool is_strict() {
  const char* const value = std::getenv("CUDA_GCTX_STRICT");
  return value != nullptr && *value == '1';
}

}  // namespace gctx::interpose
