// A pipeline of operators: some have a partition of their own, by name, and all others share the remaining SMs.
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda_gctx.hpp"

class Pool {
 public:
  // Sizes by name; the default partition is what they leave, which must be at least `smallest_default` SMs.
  Pool(int device, const std::vector<std::pair<std::string, unsigned>>& sizes, unsigned smallest_default) {
    std::vector<cuda_gctx::group> requests;
    std::vector<const char*> names;
    for (const auto& [name, sm_count] : sizes) {
      requests.push_back({sm_count, 0, 0});
      names.push_back(name.c_str());
    }
    requests.push_back({cuda_gctx::rest, 0, 0});
    names.push_back("default");
    // Refuses SMs that another context of the process uses.
    contexts_ = cuda_gctx::partition(device, requests, true, names);
    for (std::size_t place = 0; place < sizes.size(); ++place) {
      places_[sizes[place].first] = place;
    }
    if (contexts_.back().sm_count() < smallest_default) {
      throw std::runtime_error("the partitions leave " + std::to_string(contexts_.back().sm_count()) + " SMs");
    }
  }

  const cuda_gctx::context& partition(const std::string& name) const {
    const auto found = places_.find(name);
    return found != places_.end() ? contexts_[found->second] : contexts_.back();
  }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<cuda_gctx::context> contexts_;
};

int main() {
  try {
    const Pool pool(0, {{"detector", 32}, {"tracker", 16}}, 8);
    for (const char* name : {"detector", "tracker", "viewer"}) {
      const cuda_gctx::stream stream = pool.partition(name).create_stream();
      // static_cast<cudaStream_t>(stream.handle()) is what kernels and libraries take.
      std::printf("%s: %u SMs, %s\n", name, pool.partition(name).sm_count(), stream.handle() ? "a stream" : "none");
    }
    const Pool second(0, {{"detector", 32}}, 8);
  } catch (const cuda_gctx::error& error) {
    std::printf("error %d: %s\n", error.number(), error.what());
  }
}
