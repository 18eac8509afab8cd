/* What an exported library does around its kernels: operators by name, constants from files, and a check of every argument.
 *
 * It uses nothing of LibTorch but the stable ABI of 2.10, so that a library built once runs with that version and later ones, and needs no
 * Python. The tables that it works on are in library.cpp.
 */
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace tcjit {
namespace { /* two such libraries in one process must not share what has the same name */

using torch::stable::Tensor;
using Kernel = int64_t (*)(void *const *tensors, const int64_t *numbers, void *workspace, int threads);
using Boxed = void (*)(StableIValue *, uint64_t, uint64_t);

/* A tensor as exported: contiguous. */
struct Type {
  const char *name;
  int32_t (*code)();
  const char *dtype;
  std::vector<int64_t> sizes, strides;
};

struct Constant {
  Type type;
  const char *file; /* below the library's directory */
  uint64_t bytes, checksum;
};

struct Region {
  const char *name;
  const char *schema;
  Boxed boxed, shape; /* for data, and for tensors without */
  Kernel kernel;
  std::vector<Type> inputs;
  std::vector<int> constants; /* their numbers in the table of constants */
  std::vector<Type> outputs;
  std::vector<int> order;       /* what the kernel reads, in its order: inputs, then constants, counted from 0 */
  std::vector<int64_t> numbers; /* what else it is given */
  int64_t workspace;            /* bytes */
  std::vector<const char *> failures; /* what its results 1, 2, ... mean */
};

struct Library {
  const char *space;
  std::vector<Constant> constants;
  std::vector<const Region *> regions;
  const char *(*missing)(); /* what this processor lacks */
};

/* Of this library; defined in library.cpp. */
const Library &library();

std::string text(const int64_t *sizes, int64_t rank) {
  std::string out = "[";
  for (int64_t i = 0; i < rank; i++) out += (i ? ", " : "") + std::to_string(sizes[i]);
  return out + "]";
}

Tensor empty(const Type &type, int32_t device) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      (int64_t)type.sizes.size(), type.sizes.data(), type.strides.data(), type.code(), device, 0, &handle));
  return Tensor(handle);
}

Tensor empty(const Type &type) { return empty(type, aoti_torch_device_type_cpu()); }

/* The words of 8 bytes, the last one filled up with zeros, each times an odd number of its own. */
uint64_t checksum(const unsigned char *data, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, data + i, bytes - i < 8 ? bytes - i : 8);
    sum += word * (i / 4 + 1);
  }
  return sum;
}

/* The directory of this library, with a slash at its end. */
std::string folder() {
  Dl_info info;
  STD_TORCH_CHECK(dladdr((void *)&library, &info) && info.dli_fname, "tcjit: the library does not know where it lies");
  std::string path = info.dli_fname;
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Tensor read(const Constant &constant) {
  std::string path = folder() + constant.file;
  std::unique_ptr<FILE, int (*)(FILE *)> file(fopen(path.c_str(), "rb"), [](FILE *f) { return f ? fclose(f) : 0; });
  STD_TORCH_CHECK(file != nullptr, "tcjit: cannot read the constant ", constant.type.name, " from ", path);
  Tensor tensor = empty(constant.type);
  auto *data = (unsigned char *)tensor.data_ptr();
  bool whole = fread(data, 1, constant.bytes, file.get()) == constant.bytes && fgetc(file.get()) == EOF;
  STD_TORCH_CHECK(whole && checksum(data, constant.bytes) == constant.checksum, "tcjit: ", path,
                  " is not the constant that this library was exported with");
  return tensor;
}

/* All constants, read once. Never freed: at exit, LibTorch may be gone before. */
const std::vector<Tensor> &constants() {
  static const std::vector<Tensor> *all = [] {
    auto found = std::make_unique<std::vector<Tensor>>();
    for (const Constant &constant : library().constants) found->push_back(read(constant));
    return found.release();
  }();
  return *all;
}

void check(const Region &region, const Type &type, const Tensor &tensor) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  STD_TORCH_CHECK(tensor.is_cpu(), "tcjit: ", region.name, " was exported for tensors of the CPU, and ", type.name, " is elsewhere");
  STD_TORCH_CHECK(dtype == type.code(), "tcjit: ", region.name, " was exported for ", type.name, " of dtype ", type.dtype,
                  ", and was called with another");
  auto sizes = tensor.sizes();
  bool same = sizes.size() == type.sizes.size();
  for (size_t i = 0; same && i < sizes.size(); i++) same = sizes[i] == type.sizes[i];
  STD_TORCH_CHECK(same, "tcjit: ", region.name, " was exported for ", type.name, " of shape ",
                  text(type.sizes.data(), (int64_t)type.sizes.size()), ", and was called with ",
                  text(sizes.data(), (int64_t)sizes.size()), ": export it for the new shape too");
}

Tensor contiguous(const Type &type, const Tensor &tensor) {
  if (tensor.is_contiguous()) return tensor;
  Tensor copy = empty(type);
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

/* One call: the stack holds the inputs, which are then ours, and takes the outputs. */
void run(const Region &region, StableIValue *stack, uint64_t given, uint64_t wanted) {
  std::vector<Tensor> tensors, outputs;
  for (uint64_t i = 0; i < given; i++) tensors.push_back(torch::stable::detail::to<Tensor>(stack[i]));
  STD_TORCH_CHECK(given == region.inputs.size() && wanted == region.outputs.size(), "tcjit: ", region.name, " takes ",
                  region.inputs.size(), " tensors");
  static const char *const missing = library().missing();
  STD_TORCH_CHECK(missing == nullptr, "tcjit: this library was compiled for a processor with ", missing,
                  ": compile it again here, from its src/");
  for (uint64_t i = 0; i < given; i++) {
    check(region, region.inputs[i], tensors[i]);
    tensors[i] = contiguous(region.inputs[i], tensors[i]);
  }
  for (int number : region.constants) tensors.push_back(constants()[number]);
  std::vector<void *> pointers;
  for (const Type &type : region.outputs) {
    outputs.push_back(empty(type));
    pointers.push_back(outputs.back().data_ptr());
  }
  for (int number : region.order) pointers.push_back(tensors[number].data_ptr());
  std::vector<Tensor> scratch;
  if (region.workspace) scratch.push_back(empty({"workspace", aoti_torch_dtype_uint8, "uint8", {region.workspace}, {1}}));
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  int64_t flag = region.kernel(pointers.data(), region.numbers.data(), scratch.empty() ? nullptr : scratch[0].data_ptr(), (int)threads);
  bool known = flag > 0 && flag <= (int64_t)region.failures.size();
  STD_TORCH_CHECK(flag == 0, "tcjit: ", region.name, ": ", known ? region.failures[flag - 1] : "the kernel failed");
  for (size_t i = 0; i < outputs.size(); i++) stack[i] = torch::stable::detail::from(outputs[i]);
}

/* The same call on tensors without data. */
void shape(const Region &region, StableIValue *stack, uint64_t given, uint64_t wanted) {
  for (uint64_t i = 0; i < given; i++) torch::stable::detail::to<Tensor>(stack[i]);
  for (uint64_t i = 0; i < wanted; i++)
    stack[i] = torch::stable::detail::from(empty(region.outputs[i], aoti_torch_device_type_meta()));
}

/* Reads the constants, if that was not done yet; nothing, or what is wrong. */
const char *bind() {
  static std::string wrong;
  try {
    constants();
    return nullptr;
  } catch (const std::exception &error) {
    wrong = error.what();
    return wrong.c_str();
  }
}

/* Makes the operators known and reads their constants; where that fails, the first call tries again and says why. A copy of this very
 * library may have done so before, which has the same name: its operators do as well, and LibTorch, which would end the process over a second
 * definition in its own macro, only says so. */
int define() {
  TorchLibraryHandle definitions = nullptr, kernels = nullptr, shapes = nullptr;
  const char *space = library().space;
  if (aoti_torch_library_init_fragment(space, __FILE__, __LINE__, &definitions)) return 1;
  if (aoti_torch_library_init_impl(space, "CPU", __FILE__, __LINE__, &kernels)) return 1;
  if (aoti_torch_library_init_impl(space, "Meta", __FILE__, __LINE__, &shapes)) return 1;
  for (const Region *region : library().regions) {
    if (aoti_torch_library_def(definitions, region->schema)) return 1;
    torch_library_impl(kernels, region->name, region->boxed, TORCH_ABI_VERSION);
    torch_library_impl(shapes, region->name, region->shape, TORCH_ABI_VERSION);
  }
  return bind() != nullptr;
}

} // namespace
} // namespace tcjit
