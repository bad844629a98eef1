// Resource queries, both kinds of split, and descriptors.
#include <algorithm>
#include <bit>

#include "calls/entry.hpp"
#include "machine/resource_bytes.hpp"

namespace software_driver {
namespace {

// The kinds of resource that the simulated version knows.
bool is_known_type(const Call& c, CUdevResourceType type) {
  const bool workqueue = type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG || type == CU_DEV_RESOURCE_TYPE_WORKQUEUE;
  return type == CU_DEV_RESOURCE_TYPE_SM || (workqueue && c.version() >= 13010);
}

// A number that is the same for the same SMs and values, and hardly ever for others; never 0.
std::uint32_t number_of(int device, const SmSet& sms, std::initializer_list<std::uint64_t> values) {
  auto hash = static_cast<std::uint64_t>(device) + 1;
  for (std::size_t sm = 0; sm < max_sms; ++sm) {
    hash = hash * 31 + (sms.test(sm) ? 2 : 1);
  }
  for (const std::uint64_t value : values) {
    hash = hash_bytes(&value, sizeof value, hash);
  }
  return static_cast<std::uint32_t>(hash >> 32) | 1;
}

void tell_context(Call& c, const Context& context, CUdevResource* out, CUdevResourceType type) {
  refuse_if(!is_known_type(c, type), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) {
    write_workqueue_config(context.device, context.workqueue, *out);
  } else if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE) {
    write_workqueue(c.machine, *context.queues, *out);
  } else {
    const Profile& card = c.machine.chip->profile();
    const bool plain = context.traits.alignment == 0;
    const SmFields fields{context.sm_count, plain ? card.min_partition : context.traits.alignment,
                          plain ? card.alignment : context.traits.alignment, context.resource_flags,
                          context.locality_domain};
    const std::uint32_t source = context.is_green() ? number_of(context.device, context.sms, {}) : 0;
    write_sm(c.machine,
             {context.device, Origin::context, context.resource_flags, context.locality_domain, context.traits, 0,
              source, context.sms},
             fields, *out);
  }
}

// A resource that may be split, or why it may not.
SmMeaning read_input(Call& c, const CUdevResource* input) {
  refuse_if(input->type != CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  const auto read = read_sm(c.machine, *input);
  refuse_if(!read, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  refuse_if(read->origin == Origin::group || read->origin == Origin::remainder,
            CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  return *read;
}

void write_group(const Call& c, const SmMeaning& meaning, CUdevResource& out) {
  SmFields fields;
  fields.count = static_cast<unsigned>(meaning.sms.count());
  // Recorded up to 13.0: both fields are 0 in groups and remainders. That 13.1 fills them in is assumed.
  if (c.version() >= 13010) {
    const Profile& card = c.machine.chip->profile();
    fields.min_partition = meaning.traits.alignment != 0 ? meaning.traits.alignment : card.min_partition;
    fields.alignment = meaning.traits.alignment != 0 ? meaning.traits.alignment : card.alignment;
    fields.flags = meaning.flags;
    fields.locality_domain = meaning.locality_domain;
  }
  write_sm(c.machine, meaning, fields, out);
}

// `group` is one of the same split, whose input and number the remainder has too.
void write_remainder(const Call& c, const SplitAnswer& answer, const SmMeaning& group, CUdevResource* out) {
  if (out == nullptr) {
    return;
  }
  if (answer.remainder.none()) {
    return write_invalid(*out);
  }
  SmMeaning made{group.device, Origin::remainder, 0, 0, {}, group.split, group.source, answer.remainder};
  made.traits = {answer.remainder_coscheduled, answer.remainder_bond};
  write_group(c, made, *out);
}

// Of a context over several pieces: the least alignment, and the loosest bond.
Traits combined(const Traits& a, const Traits& b) {
  return {a.alignment == 0 || (b.alignment != 0 && b.alignment < a.alignment) ? b.alignment : a.alignment,
          std::max(a.bond, b.bond)};
}

// All resources of a descriptor are of one device, in whatever order they come.
bool fits_device(Descriptor& made, int device) {
  if (made.has_device) {
    return made.device == device;
  }
  made.has_device = true;
  made.device = device;
  return true;
}

// What the header of 13.1 demands of SM resources in one descriptor; 13.0 accepts others too (recorded).
bool fit_together(const Descriptor& made, const SmMeaning& next) {
  return made.split == next.split && made.traits.alignment == next.traits.alignment &&
         made.locality_domain == next.locality_domain;
}

void read_for_descriptor(Call& c, const CUdevResource& resource, Descriptor& made) {
  const auto demand = [](bool holds) { refuse_if(!holds, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION); };
  refuse_if(!is_known_type(c, resource.type), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  if (resource.type == CU_DEV_RESOURCE_TYPE_SM) {
    const auto meaning = read_sm(c.machine, resource);
    demand(meaning && fits_device(made, meaning->device));
    demand(!made.has_sms || meaning->source == made.source);
    demand(!made.has_sms || c.version() < 13010 || fit_together(made, *meaning));
    made.source = meaning->source;
    made.split = meaning->split;
    made.locality_domain = meaning->locality_domain;
    // Recorded: nothing is checked for overlaps, and the counts are added up to what the device has.
    made.sms |= meaning->sms;
    made.sm_count = std::min(made.sm_count + static_cast<unsigned>(meaning->sms.count()), c.machine.chip->sm_count());
    made.traits = made.has_sms ? combined(made.traits, meaning->traits) : meaning->traits;
    made.has_sms = true;
    made.resource_flags |= meaning->flags;
    return;
  }
  demand(!made.has_workqueue);
  made.has_workqueue = true;
  if (resource.type == CU_DEV_RESOURCE_TYPE_WORKQUEUE) {
    made.queues = read_workqueue(c.machine, resource);
    return demand(made.queues && fits_device(made, made.queues->device));
  }
  const CUdevWorkqueueConfigResource& config = resource.wqConfig;
  demand(config.device >= 0 && config.device < static_cast<int>(c.machine.devices.size()));
  demand(fits_device(made, config.device) && config.wqConcurrencyLimit != 0);
  demand(config.sharingScope == CU_WORKQUEUE_SCOPE_DEVICE_CTX ||
         config.sharingScope == CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED);
  made.workqueue = {config.wqConcurrencyLimit, config.sharingScope};
}

}  // namespace
}  // namespace software_driver

using namespace software_driver;

SOFTWARE_DRIVER_CALL(cuDeviceGetDevResource, Call& c, const Device& device, CUdevResource* out,
                     CUdevResourceType type) {
  refuse_if(!is_known_type(c, type), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  // Assumed: cuda.core 1.2 asks every device for it, and would have no workqueues if a driver refused.
  if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE) {
    return write_workqueue(c.machine, *device.queues, *out);
  }
  if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) {
    return write_workqueue_config(
        device.ordinal, {static_cast<unsigned>(c.machine.spec.connections), CU_WORKQUEUE_SCOPE_DEVICE_CTX}, *out);
  }
  const Profile& card = device.chip->profile();
  write_sm(c.machine, {device.ordinal, Origin::device, 0, 0, {}, 0, 0, device.chip->all()},
           {device.chip->sm_count(), card.min_partition, card.alignment, 0, 0}, *out);
}

// Recorded: null does not mean the current context here.
SOFTWARE_DRIVER_ROW(cuCtxGetDevResource, tell_context)
SOFTWARE_DRIVER_ROW(cuGreenCtxGetDevResource, tell_context)

SOFTWARE_DRIVER_CALL(cuStreamGetDevResource, Call& c, const Stream& stream, CUdevResource* out,
                     CUdevResourceType type) {
  refuse_if(type != CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  return tell_context(c, *stream.context, out, type);
}

SOFTWARE_DRIVER_CALL(cuDevSmResourceSplitByCount, Call& c, CUdevResource* groups, unsigned* group_count,
                     const CUdevResource* input, CUdevResource* remainder, unsigned flags, unsigned min_count) {
  const SmMeaning meaning = read_input(c, input);
  const Chip& chip = *c.machine.device(meaning.device).chip;
  const unsigned wanted = groups == nullptr ? static_cast<unsigned>(meaning.sms.count()) : *group_count;
  refuse_if(groups != nullptr && wanted == 0, CUDA_ERROR_INVALID_VALUE);
  const SplitAnswer answer =
      chip.split_by_count(meaning.sms, min_count, flags, wanted, meaning.traits.alignment, meaning.traits.bond);
  refuse_if(answer.result != CUDA_SUCCESS, answer.result);
  *group_count = static_cast<unsigned>(answer.groups.size());
  const std::uint32_t split = number_of(meaning.device, meaning.sms, {1, flags, min_count, wanted});
  SmMeaning made{meaning.device, Origin::group, 0, 0, {}, split, meaning.source, {}};
  if (groups != nullptr) {
    for (std::size_t i = 0; i < answer.groups.size(); ++i) {
      made.sms = answer.groups[i];
      made.traits = {answer.coscheduled[i], answer.bonds[i]};
      write_group(c, made, groups[i]);
    }
  }
  write_remainder(c, answer, made, remainder);
}

SOFTWARE_DRIVER_CALL(cuDevSmResourceSplit, Call& c, CUdevResource* groups, unsigned group_count,
                     const CUdevResource* input, CUdevResource* remainder, unsigned flags,
                     CU_DEV_SM_RESOURCE_GROUP_PARAMS* params) {
  refuse_if(group_count == 0, CUDA_ERROR_INVALID_VALUE);
  const SmMeaning meaning = read_input(c, input);
  const Chip& chip = *c.machine.device(meaning.device).chip;
  const SplitAnswer answer =
      chip.split_structured(meaning.sms, {params, group_count}, flags, c.version(), groups == nullptr);
  refuse_if(answer.result != CUDA_SUCCESS, answer.result);
  std::uint64_t asked = 0;
  for (unsigned i = 0; i < group_count; ++i) {
    asked = hash_bytes(&params[i], sizeof params[i], asked);
  }
  const std::uint32_t split = number_of(meaning.device, meaning.sms, {2, group_count, asked});
  SmMeaning made{meaning.device, Origin::group, 0, 0, {}, split, meaning.source, {}};
  for (unsigned i = 0; i < group_count; ++i) {
    params[i] = answer.params[i];
    if (groups == nullptr) {
      continue;
    }
    made.sms = answer.groups[i];
    made.traits = {answer.coscheduled[i], answer.bonds[i]};
    made.flags = params[i].flags;
    made.locality_domain = params[i].localityDomainId;
    write_group(c, made, groups[i]);
  }
  write_remainder(c, answer, made, remainder);
}

SOFTWARE_DRIVER_CALL(cuDevResourceGenerateDesc, Call& c, CUdevResourceDesc* out, CUdevResource* resources,
                     unsigned count) {
  refuse_if(count == 0, CUDA_ERROR_INVALID_VALUE);
  auto made = std::make_unique<Descriptor>();
  for (unsigned i = 0; i < count; ++i) {
    read_for_descriptor(c, resources[i], *made);
  }
  if (!made->has_sms) {
    // A descriptor of a workqueue alone leaves the SMs as they are: all of the device. Assumed.
    const Chip& chip = *c.machine.device(made->device).chip;
    made->sms = chip.all();
    made->sm_count = chip.sm_count();
  }
  c.made(*made);
  give(out, c.machine.descriptors.add(std::move(made)));
}
