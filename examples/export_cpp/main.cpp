// Runs a model that tcjit exported, on its example inputs, and compares with the outputs saved beside them. No Python takes part.
//
//   run FOLDER [seconds]    with a number, it also tells the time of a call, measured for so long
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <dlfcn.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

using c10::IValue;

// The operators of the regions: known as soon as the library is loaded.
static void load_operators(const std::string &folder) {
  void *library = dlopen((folder + "/model.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  auto bind = reinterpret_cast<const char *(*)()>(dlsym(library, "tcjit_bind"));
  if (!bind) throw std::runtime_error(dlerror());
  if (const char *wrong = bind()) throw std::runtime_error(wrong);
}

static bool same(const IValue &a, const IValue &b) {
  if (a.isTensor() && b.isTensor()) {
    const at::Tensor &x = a.toTensor(), &y = b.toTensor();
    if (x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes()) return false;
    return at::isFloatingType(x.scalar_type()) ? at::allclose(x, y, 1e-3, 1e-4, true) : x.equal(y);
  }
  if (a.isTuple() && b.isTuple()) {
    const auto &x = a.toTupleRef().elements(), &y = b.toTupleRef().elements();
    for (size_t i = 0; i < x.size() && i < y.size(); i++)
      if (!same(x[i], y[i])) return false;
    return x.size() == y.size();
  }
  if (a.isList() && b.isList()) {
    const auto x = a.toListRef(), y = b.toListRef();
    for (size_t i = 0; i < x.size() && i < y.size(); i++)
      if (!same(x[i], y[i])) return false;
    return x.size() == y.size();
  }
  if (a.isGenericDict() && b.isGenericDict()) {
    const auto x = a.toGenericDict(), y = b.toGenericDict();
    for (const auto &entry : x)
      if (!y.contains(entry.key()) || !same(entry.value(), y.at(entry.key()))) return false;
    return x.size() == y.size();
  }
  return a == b;
}

int main(int count, char **arguments) {
  if (count < 2) return std::cerr << "usage: run FOLDER [seconds]\n", 2;
  try {
    const std::string folder = arguments[1];
    at::NoGradGuard inference;
    load_operators(folder);
    torch::jit::Module model = torch::jit::load(folder + "/model.pt");
    torch::jit::Module examples = torch::jit::load(folder + "/examples.pt");
    std::vector<IValue> inputs = examples.attr("inputs").toTupleRef().elements().vec();
    std::vector<IValue> expected = examples.attr("outputs").toTupleRef().elements().vec();
    for (const IValue &input : inputs)
      if (input.isTensor()) std::cout << "input " << input.toTensor().toString() << ' ' << input.toTensor().sizes() << '\n';
    if (!same(model.forward(inputs), expected.at(0))) return std::cerr << "other outputs than those saved\n", 1;
    std::cout << "the outputs are those saved\n";
    if (count > 2) {
      using Clock = std::chrono::steady_clock;
      const double limit = std::stod(arguments[2]);
      long calls = 0;
      std::chrono::duration<double> passed{0};
      for (auto start = Clock::now(); passed.count() < limit; passed = Clock::now() - start, calls++) model.forward(inputs);
      std::cout << passed.count() / static_cast<double>(calls) * 1e6 << " us a call\n";
    }
  } catch (const std::exception &error) {
    return std::cerr << error.what() << '\n', 1;
  }
}
