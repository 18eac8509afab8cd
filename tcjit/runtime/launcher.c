/* The fast path of a call, about as long as one eager torch operator.
 *
 * A Launcher holds a table of prepared calls. `Launcher.call(args, out, unchecked)` looks for the entry whose dtypes, shapes and
 * strides are those of the arguments, allocates the outputs through torch, releases the GIL and runs the kernel. Whatever it does
 * not know (a subclass, a lazy view, a tracing or dispatch mode, an unknown shape, a wrong argument) is answered with NotImplemented, and
 * Python decides. It never raises for an argument and never guesses.
 *
 * Where arguments require grad, the entry is one that was prepared for these: the call then goes through the `apply` of a subclass of
 * torch.autograd.Function whose `forward` is the function of this module, which runs the kernel and tells the node what to keep.
 *
 * Tensors are read through the DLPack exchange table that torch hangs on torch.Tensor; no torch header is needed, only Python.h.
 *
 * Locking. All state is guarded by the GIL. A call into Python or torch (an attribute, a predicate such as is_neg, an allocation, the
 * release of a reference) may let go of it or run other Python code, so that another call, or `add`, gets to run: functions that make
 * such calls are marked YIELDS, and so is what calls them. The invariant: no borrowed pointer lives across one that YIELDS. Hence
 * - what the walk over the arguments needs before an entry is known, their number and kinds, is part of the launcher and never changes;
 * - entries are looked through in one go, without a call that YIELDS, and the one chosen is counted before anything else is done;
 * - a dl_tensor borrows the shape, the strides and the memory of its tensor, which other threads may resize: it does not outlive the
 *   function that asked for it, and the addresses for the kernel are taken when nothing that YIELDS comes before it;
 * - arguments and outputs given by the caller are held by the tuples and the stack of the caller; tuples do not change.
 * Objects in `torch` are never released. While the kernel itself runs without the GIL it relies, as any operator of torch does, on nobody
 * freeing the memory of its arguments.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 64, MAX_NUMBERS = 128, MAX_ENTRIES = 256 };

/* ------------------------------------------------------------------ DLPack's public layout, as far as it is used */

typedef struct { uint32_t major, minor; } dl_version;
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_exchange {
    dl_version version;
    struct dl_exchange *previous;
    void *allocate, *from_object, *to_object;
    int (*view)(void *object, dl_tensor *out);
    void *stream;
} dl_exchange;
enum { DL_CPU = 1, DL_FLOAT = 2 };

typedef int64_t (*kernel_function)(void *const *tensors, const int64_t *numbers, void *workspace, int threads);

/* ------------------------------------------------------------------ what torch gave us */

static struct {
    const dl_exchange *exchange;
    PyTypeObject *tensor, *parameter;
    PyObject *dispatch_modes, *function_mode, *functorch, *tracing, *grad_enabled, *threads;
    PyObject *is_neg, *is_inference, *empty_like, *large_like, *large_scratch, *bump, *forward;
    int64_t large; /* bytes from which on results come out of the pool, like a template, and workspaces, by their size */
} torch;
static PyObject *str_requires_grad, *str_level, *str_to_save, *str_materialize_grads, *str_non_differentiable, *str_recorded;
static int forced_threads; /* above 0 in a forked child */

static PyObject *configure(PyObject *self, PyObject *args) {
    enum { COUNT = 17 };
    PyObject *o[COUNT];
    if (PyTuple_GET_SIZE(args) != COUNT) return PyErr_SetString(PyExc_TypeError, "configure takes 17 arguments"), NULL;
    for (int i = 0; i < COUNT; i++) o[i] = PyTuple_GET_ITEM(args, i);
    PyObject *capsule = o[16];
    const dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange) return NULL;
    if (exchange->version.major != 1 || !exchange->view || !PyType_Check(o[0]) || !PyType_Check(o[1]) || !PyDict_Check(o[15]))
        Py_RETURN_FALSE;
    const int64_t large = PyLong_AsLongLong(o[11]);
    if (large == -1 && PyErr_Occurred()) return NULL;
    for (int i = 0; i < COUNT; i++) Py_INCREF(o[i]); /* kept for the life of the process */
    torch.exchange = exchange;
    torch.tensor = (PyTypeObject *)o[0], torch.parameter = (PyTypeObject *)o[1];
    torch.dispatch_modes = o[2], torch.function_mode = o[3], torch.functorch = o[4], torch.tracing = o[5];
    torch.grad_enabled = o[6], torch.threads = o[7], torch.is_neg = o[8], torch.is_inference = o[9];
    torch.empty_like = o[10], torch.large = large, torch.large_like = o[12], torch.large_scratch = o[13];
    torch.bump = o[14], torch.forward = o[15];
    Py_RETURN_TRUE;
}

static PyObject *force_threads(PyObject *self, PyObject *number) {
    long value = PyLong_AsLong(number);
    if (value == -1 && PyErr_Occurred()) return NULL;
    forced_threads = (int)value;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ entries */

typedef struct {
    char kind; /* t tensor; i signed integer, u uint64, f float32, d float64, b bool */
    char fixed; /* a specialised scalar: the value is part of the entry */
    uint8_t code, bits;
    int ndim, slot; /* slot: where a scalar goes in numbers, or -1 */
    int64_t *shape, *strides;
    int64_t low, high, value;
} parameter;

typedef struct {
    PyObject *template; /* a tensor of this dtype and shape without memory, for torch.empty_like: a third faster than torch.empty */
    int64_t *extents;
    int64_t bytes;
    int ndim;
    uint8_t code, bits;
} output;

/* What a node of autograd's graph gets. Places are those of arguments, then of outputs. */
typedef struct {
    uint32_t requires; /* bit i: argument i requires grad; 0 where nothing is recorded */
    PyObject *apply, *state; /* state: what the backward gets, a pair whose second is for scalars, and empty here */
    int kept, scalars, constants, returned; /* returned: how many of the outputs are results */
    int64_t *place; /* of the tensors to keep, of the scalars, and of the results without derivatives */
} recording;

typedef struct {
    int64_t references;
    kernel_function function;
    PyObject *keep, *fail;
    recording record;
    int64_t workspace;
    int checked, functional, params, outputs, numbers;
    parameter *param;
    output *out;
    int64_t *number;
} entry;

/* YIELDS: the last reference may go to anything. The caller has taken the entry out of every table. */
static void release(entry *e) {
    if (--e->references) return;
    for (int i = 0; e->param && i < e->params; i++) free(e->param[i].shape);
    for (int i = 0; e->out && i < e->outputs; i++) {
        Py_XDECREF(e->out[i].template);
        free(e->out[i].extents);
    }
    Py_XDECREF(e->keep);
    Py_XDECREF(e->fail);
    Py_XDECREF(e->record.apply);
    Py_XDECREF(e->record.state);
    free(e->record.place), free(e->param), free(e->out), free(e->number), free(e);
}

/* The integers of a tuple; -1 with an exception set when it is no tuple of n integers. */
static int integers(PyObject *tuple, int64_t *into, Py_ssize_t n) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != n) {
        PyErr_SetString(PyExc_ValueError, "a tuple of integers was expected");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        into[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (into[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static int read_tensor(parameter *p, PyObject *shape, PyObject *strides, int code, int bits) {
    if (!PyTuple_Check(shape)) {
        PyErr_SetString(PyExc_ValueError, "a shape was expected");
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(shape);
    p->ndim = (int)n, p->code = (uint8_t)code, p->bits = (uint8_t)bits;
    p->shape = calloc(2 * (size_t)n + 1, sizeof *p->shape);
    if (!p->shape) return PyErr_NoMemory(), -1;
    p->strides = p->shape + n;
    return integers(shape, p->shape, n) || integers(strides, p->strides, n) ? -1 : 0;
}

/* ("t", shape, strides, code, bits) or (kind, low, high, slot, value or None) */
static int read_parameter(parameter *p, PyObject *spec) {
    const char *kind;
    PyObject *a, *b, *last;
    int c;
    if (!PyTuple_Check(spec)) return PyErr_SetString(PyExc_TypeError, "a parameter is a tuple"), -1;
    if (!PyArg_ParseTuple(spec, "sOOiO", &kind, &a, &b, &c, &last)) return -1;
    p->kind = kind[0];
    if (p->kind == 't') {
        long bits = PyLong_AsLong(last);
        return bits == -1 && PyErr_Occurred() ? -1 : read_tensor(p, a, b, c, (int)bits);
    }
    p->low = PyLong_AsLongLong(a), p->high = PyLong_AsLongLong(b), p->slot = c, p->fixed = last != Py_None;
    if (p->fixed) p->value = PyLong_AsLongLong(last);
    return PyErr_Occurred() ? -1 : 0;
}

/* (template, shape, code, bits) */
static int read_output(output *o, PyObject *spec) {
    PyObject *template, *shape;
    int code, bits;
    if (!PyTuple_Check(spec)) return PyErr_SetString(PyExc_TypeError, "an output is a tuple"), -1;
    if (!PyArg_ParseTuple(spec, "OO!ii", &template, &PyTuple_Type, &shape, &code, &bits)) return -1;
    Py_INCREF(template);
    o->template = template;
    o->ndim = (int)PyTuple_GET_SIZE(shape), o->code = (uint8_t)code, o->bits = (uint8_t)bits;
    o->extents = calloc((size_t)o->ndim + 1, sizeof *o->extents);
    if (!o->extents) return PyErr_NoMemory(), -1;
    if (integers(shape, o->extents, o->ndim)) return -1;
    o->bytes = bits / 8;
    for (int d = 0; d < o->ndim; d++) o->bytes *= o->extents[d];
    return 0;
}

/* (requires, apply, state, kept, scalars, constants, returned), the middle ones tuples of places; or None */
static int read_recording(entry *e, PyObject *spec) {
    recording *r = &e->record;
    PyObject *apply, *state, *part[3];
    if (spec == Py_None) return 0;
    if (!PyTuple_Check(spec)) return PyErr_SetString(PyExc_TypeError, "a recording is a tuple"), -1;
    if (!PyArg_ParseTuple(spec, "IOO!O!O!O!i", &r->requires, &apply, &PyTuple_Type, &state, &PyTuple_Type, &part[0], &PyTuple_Type,
                          &part[1], &PyTuple_Type, &part[2], &r->returned))
        return -1;
    Py_INCREF(apply), Py_INCREF(state);
    r->apply = apply, r->state = state;
    r->kept = (int)PyTuple_GET_SIZE(part[0]), r->scalars = (int)PyTuple_GET_SIZE(part[1]), r->constants = (int)PyTuple_GET_SIZE(part[2]);
    const int count = r->kept + r->scalars + r->constants;
    r->place = calloc((size_t)count + 1, sizeof *r->place);
    if (!r->place) return PyErr_NoMemory(), -1;
    if (integers(part[0], r->place, r->kept) || integers(part[1], r->place + r->kept, r->scalars)) return -1;
    if (integers(part[2], r->place + r->kept + r->scalars, r->constants)) return -1;
    for (int i = 0; i < count; i++)
        if (r->place[i] < 0 || r->place[i] >= e->params + e->outputs) return PyErr_SetString(PyExc_ValueError, "place"), -1;
    if (r->requires && r->returned > 0 && r->returned <= e->outputs && PyTuple_GET_SIZE(state) == 2) return 0;
    return PyErr_SetString(PyExc_ValueError, "a recording is of arguments that require grad, and returns outputs"), -1;
}

typedef struct {
    PyObject_HEAD
    int count, next; /* next: the entry that a new one replaces when the table is full */
    int params; /* with the kinds the same for all entries, and fixed from the first on */
    char kinds[MAX_PARAMS];
    entry *entries[MAX_ENTRIES];
} launcher;

/* Whether an entry takes the kinds of arguments that the others take; the first one decides. */
static int agrees(launcher *self, const entry *e) {
    if (self->count == 0) {
        self->params = e->params;
        for (int i = 0; i < e->params; i++) self->kinds[i] = e->param[i].kind;
    }
    if (e->params != self->params) return 0;
    for (int i = 0; i < e->params; i++)
        if (e->param[i].kind != self->kinds[i]) return 0;
    return 1;
}

/* add(address, checked, functional, params, outputs, numbers, workspace, keep, fail, recording): the entry is looked for first from now
 * on. All entries of a launcher are of one def: as many parameters, of the same kinds. YIELDS, but not between the look at the table and
 * the end of its change. */
static PyObject *launcher_add(launcher *self, PyObject *args) {
    unsigned long long address;
    int checked, functional;
    PyObject *params, *outputs, *numbers, *keep, *fail, *record = Py_None;
    long long workspace;
    if (!PyArg_ParseTuple(args, "KppO!O!O!LOO|O", &address, &checked, &functional, &PyTuple_Type, &params, &PyTuple_Type, &outputs,
                          &PyTuple_Type, &numbers, &workspace, &keep, &fail, &record))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(params), m = PyTuple_GET_SIZE(outputs), k = PyTuple_GET_SIZE(numbers);
    if (n > MAX_PARAMS || m > MAX_PARAMS || k > MAX_NUMBERS) Py_RETURN_FALSE;
    entry *e = calloc(1, sizeof *e);
    if (!e) return PyErr_NoMemory();
    e->references = 1, e->function = (kernel_function)(uintptr_t)address, e->checked = checked, e->functional = functional;
    e->workspace = workspace, e->params = (int)n, e->outputs = (int)m, e->numbers = (int)k;
    Py_INCREF(keep), Py_INCREF(fail);
    e->keep = keep, e->fail = fail;
    e->param = calloc((size_t)n + 1, sizeof *e->param), e->out = calloc((size_t)m + 1, sizeof *e->out);
    e->number = calloc((size_t)k + 1, sizeof *e->number);
    int bad = 0;
    if (!e->param || !e->out || !e->number) bad = 1, PyErr_NoMemory();
    for (Py_ssize_t i = 0; !bad && i < n; i++) bad = read_parameter(&e->param[i], PyTuple_GET_ITEM(params, i));
    for (Py_ssize_t i = 0; !bad && i < m; i++) bad = read_output(&e->out[i], PyTuple_GET_ITEM(outputs, i));
    for (Py_ssize_t i = 0; !bad && i < n; i++)
        if (e->param[i].kind != 't' && (e->param[i].slot < -1 || e->param[i].slot >= k)) bad = 1, PyErr_SetString(PyExc_ValueError, "slot");
    bad = bad || integers(numbers, e->number, k) || read_recording(e, record);
    if (!bad && !agrees(self, e)) bad = 1, PyErr_SetString(PyExc_ValueError, "the entries of a launcher take the same kinds of arguments");
    if (bad) {
        release(e);
        return NULL;
    }
    if (self->count < MAX_ENTRIES) {
        self->entries[self->count++] = e;
    } else {
        entry *old = self->entries[self->next];
        self->entries[self->next] = e;
        self->next = (self->next + 1) % MAX_ENTRIES;
        release(old);
    }
    Py_RETURN_TRUE;
}

/* ------------------------------------------------------------------ the checks */

/* 1 when calling `function` gives exactly `expected`; 0 otherwise, errors included. YIELDS. */
static int gives(PyObject *function, PyObject *expected) {
    PyObject *result = PyObject_CallNoArgs(function);
    if (!result) return PyErr_Clear(), 0;
    Py_DECREF(result); /* compared by address with an immortal or long-lived object only */
    return result == expected;
}

/* YIELDS */
static int gives_zero(PyObject *function) {
    PyObject *result = PyObject_CallNoArgs(function);
    long value = result ? PyLong_AsLong(result) : -1;
    Py_XDECREF(result);
    if (PyErr_Occurred()) PyErr_Clear();
    return value == 0;
}

/* No dispatch, function or functorch mode, no tracing, no forward differentiation level. YIELDS. */
static int plain_state(void) {
    if (!gives_zero(torch.dispatch_modes) || !gives(torch.function_mode, Py_False)) return 0;
    if (!gives(torch.functorch, Py_None) || !gives(torch.tracing, Py_False)) return 0;
    PyObject *level = PyDict_GetItemWithError(torch.forward, str_level);
    if (!level) return PyErr_Clear(), 0;
    Py_INCREF(level); /* borrowed from a dict */
    long value = PyLong_AsLong(level);
    Py_DECREF(level);
    if (value == -1 && PyErr_Occurred()) return PyErr_Clear(), 0;
    return value < 0;
}

/* YIELDS */
static int is_false(PyObject *predicate, PyObject *tensor) {
    PyObject *answer = PyObject_Vectorcall(predicate, &tensor, 1, NULL);
    if (!answer) return PyErr_Clear(), 0;
    Py_DECREF(answer);
    return answer == Py_False;
}

static int is_tensor(PyObject *object) { return Py_TYPE(object) == torch.tensor || Py_TYPE(object) == torch.parameter; }

/* A tensor without lazy bits, of torch's own classes. YIELDS. */
static int plain(PyObject *object) { return is_tensor(object) && is_false(torch.is_neg, object); }

/* Whether a tensor requires grad. YIELDS. */
static int requires_grad(PyObject *tensor) {
    PyObject *flag = PyObject_GetAttr(tensor, str_requires_grad);
    if (!flag) return PyErr_Clear(), 1;
    Py_DECREF(flag);
    return flag != Py_False;
}

/* The view of a plain tensor, if it is strided and on the CPU with readable memory; it borrows from the tensor. Does not yield where it
 * succeeds. */
static int viewed(PyObject *object, dl_tensor *view) {
    if (torch.exchange->view(object, view)) return PyErr_Clear(), 0;
    if (view->device_type != DL_CPU || view->lanes != 1 || (view->ndim > 0 && !view->strides)) return 0;
    if (view->data) view->data = (char *)view->data + view->byte_offset;
    else
        for (int d = 0; d <= view->ndim; d++) /* zero, functional and freed tensors have no memory; empty ones need none */
            if (d == view->ndim) return 0;
            else if (view->shape[d] == 0) break;
    return 1;
}

static int same_tensor(const parameter *p, const dl_tensor *t) {
    if (t->code != p->code || t->bits != p->bits || t->ndim != p->ndim) return 0;
    for (int d = 0; d < p->ndim; d++)
        if (t->shape[d] != p->shape[d] || (t->strides[d] != p->strides[d] && p->shape[d] > 1)) return 0;
    return 1;
}

static int integer(PyObject *object, int64_t *value) {
    int overflow;
    if (!PyLong_CheckExact(object)) return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* The number in a tensor without dimensions, of floats on the CPU. */
static int number_in(PyObject *object, double *number) {
    dl_tensor view;
    if (!is_tensor(object) || !viewed(object, &view) || view.ndim || view.code != DL_FLOAT) return 0;
    if (view.bits == 32) *number = *(const float *)view.data;
    else if (view.bits == 64) *number = *(const double *)view.data;
    else return 0;
    return 1;
}

/* The 64 bits that a kernel gets for a scalar argument; 0 when Python must look at it. */
static int scalar_bits(const parameter *p, PyObject *object, int64_t *bits) {
    double number;
    int64_t whole;
    switch (p->kind) {
    case 'b':
        *bits = object == Py_True;
        return PyBool_Check(object);
    case 'i':
        return integer(object, bits) && *bits >= p->low && *bits <= p->high;
    case 'u':
        return integer(object, bits) && *bits >= 0;
    case 'f':
    case 'd':
        if (PyFloat_CheckExact(object)) number = PyFloat_AS_DOUBLE(object);
        else if (integer(object, &whole) && whole >= -(1 << 24) && whole <= (1 << 24)) number = (double)whole;
        else if (!number_in(object, &number)) return 0;
        if (p->kind == 'f') {
            double rounded = (double)(float)number;
            if (isinf(rounded) && !isinf(number)) return 0;
            number = rounded;
        }
        memcpy(bits, &number, sizeof number);
        return 1;
    }
    return 0;
}

static int matches(const entry *e, PyObject *const *args, const dl_tensor *views, int64_t *numbers) {
    for (int i = 0; i < e->params; i++)
        if (e->param[i].kind == 't' && !same_tensor(&e->param[i], &views[i])) return 0;
    memcpy(numbers, e->number, (size_t)e->numbers * sizeof *numbers);
    for (int i = 0; i < e->params; i++) {
        int64_t bits;
        if (e->param[i].kind == 't') continue;
        if (!scalar_bits(&e->param[i], args[i], &bits) || (e->param[i].fixed && bits != e->param[i].value)) return 0;
        if (e->param[i].slot >= 0) numbers[e->param[i].slot] = bits;
    }
    return 1;
}

/* The entry for these arguments, and the numbers for its kernel; NULL where there is none. Does not yield where it finds one, which the
 * caller counts at once. */
static entry *find(const launcher *self, PyObject *const *args, int unchecked, uint32_t requires, int64_t *numbers) {
    dl_tensor views[MAX_PARAMS];
    for (int i = 0; i < self->params; i++)
        if (self->kinds[i] == 't' && !viewed(args[i], &views[i])) return NULL;
    for (int k = self->count - 1; k >= 0; k--) {
        entry *e = self->entries[k];
        if (e->checked != unchecked && e->record.requires == requires && matches(e, args, views, numbers)) return e;
    }
    return NULL;
}

/* ------------------------------------------------------------------ outputs */

static uintptr_t after(const dl_tensor *t) { /* the first byte after the tensor's memory; 0 for an empty tensor */
    int64_t last = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 0) return 0;
        last += (t->shape[d] - 1) * t->strides[d];
    }
    return (uintptr_t)t->data + (uintptr_t)(last + 1) * (t->bits / 8);
}

static int disjoint(const dl_tensor *a, const dl_tensor *b) {
    return after(a) <= (uintptr_t)b->data || after(b) <= (uintptr_t)a->data;
}

static int fits(const output *o, const dl_tensor *t) {
    int64_t stride = 1;
    if (t->code != o->code || t->bits != o->bits || t->ndim != o->ndim) return 0;
    for (int d = o->ndim - 1; d >= 0; d--) {
        if (t->shape[d] != o->extents[d] || (t->strides[d] != stride && o->extents[d] > 1 && o->bytes)) return 0;
        stride *= o->extents[d];
    }
    return 1;
}

static int overlaps(const entry *e, const dl_tensor *views, const dl_tensor *outs, int which) {
    for (int i = 0; i < e->params; i++)
        if (e->param[i].kind == 't' && !disjoint(&outs[which], &views[i])) return 1;
    for (int i = 0; i < which; i++)
        if (!disjoint(&outs[which], &outs[i])) return 1;
    return 0;
}

static void drop(const entry *e, PyObject **objects) { /* YIELDS */
    for (int i = 0; i < e->outputs; i++) Py_XDECREF(objects[i]);
}

/* New references to the tensors that the caller gave for the outputs; 0 when Python must look at them. YIELDS. */
static int given_outputs(const entry *e, PyObject *out, int grad, PyObject **objects) {
    if (e->outputs == 1 && !PyTuple_CheckExact(out)) objects[0] = out;
    else if (PyTuple_CheckExact(out) && PyTuple_GET_SIZE(out) == e->outputs)
        for (int i = 0; i < e->outputs; i++) objects[i] = PyTuple_GET_ITEM(out, i);
    else return 0;
    for (int i = 0; i < e->outputs; i++)
        if (!plain(objects[i]) || (grad && requires_grad(objects[i])) || !is_false(torch.is_inference, objects[i])) return 0;
    for (int i = 0; i < e->outputs; i++) Py_INCREF(objects[i]);
    return 1;
}

/* 1 done, 0 Python must look, -1 an exception is set (out of memory). YIELDS. */
static int new_outputs(const entry *e, PyObject **objects) {
    int state = 1;
    for (int i = 0; i < e->outputs; i++) {
        PyObject *make = e->out[i].bytes < torch.large ? torch.empty_like : torch.large_like;
        objects[i] = state == 1 ? PyObject_CallOneArg(make, e->out[i].template) : NULL;
        if (state == 1) state = !objects[i] ? -1 : Py_TYPE(objects[i]) == torch.tensor;
    }
    if (state != 1) drop(e, objects);
    return state;
}

/* Where the kernel finds outputs and arguments; 0 where they are no longer, or not yet, what the entry is for. Does not yield where it
 * succeeds: from here to the kernel nothing may. */
static int addresses(const entry *e, PyObject *const *args, PyObject *const *objects, int given, void **pointers) {
    dl_tensor outs[MAX_PARAMS], views[MAX_PARAMS];
    int count = 0;
    for (int i = 0; i < e->outputs; i++) {
        if (!viewed(objects[i], &outs[i]) || !fits(&e->out[i], &outs[i])) return 0;
        pointers[count++] = outs[i].data;
    }
    for (int i = 0; i < e->params; i++) {
        if (e->param[i].kind != 't') continue;
        if (!viewed(args[i], &views[i]) || !same_tensor(&e->param[i], &views[i])) return 0;
        pointers[count++] = views[i].data;
    }
    for (int i = 0; given && i < e->outputs; i++)
        if (overlaps(e, views, outs, i)) return 0;
    return 1;
}

/* In-place writes count as versions; 0 with an exception set. YIELDS. */
static int bump(const entry *e, PyObject *const *objects) {
    for (int i = 0; i < e->outputs; i++) {
        PyObject *one = PyTuple_Pack(1, objects[i]);
        PyObject *done = one ? PyObject_CallOneArg(torch.bump, one) : NULL;
        Py_XDECREF(one);
        if (!done) return 0;
        Py_DECREF(done);
    }
    return 1;
}

/* The first `count` outputs, as a def returns them; it steals all references. YIELDS. */
static PyObject *results(const entry *e, PyObject **objects, int count) {
    PyObject *tuple = count == 1 ? objects[0] : PyTuple_New(count);
    for (int i = 0; i < e->outputs; i++)
        if (i >= count || !tuple) Py_DECREF(objects[i]);
        else if (count > 1) PyTuple_SET_ITEM(tuple, i, objects[i]);
    return tuple;
}

/* ------------------------------------------------------------------ the call */

/* YIELDS */
static int thread_count(void) {
    if (forced_threads > 0) return forced_threads;
    PyObject *number = PyObject_CallNoArgs(torch.threads);
    long value = number ? PyLong_AsLong(number) : 1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) PyErr_Clear();
    return value < 1 ? 1 : (int)value;
}

/* Runs the kernel without the GIL; the flag it returned, or -1 when there is no memory for its workspace, which is not given if small. */
static int64_t launch(const entry *e, void **pointers, const int64_t *numbers, void *workspace, int threads) {
    int64_t flag = -1;
    void *small = NULL;
    Py_BEGIN_ALLOW_THREADS
    if (workspace || e->workspace <= 0 || !posix_memalign(&small, 64, (size_t)e->workspace))
        flag = e->function(pointers, numbers, workspace ? workspace : small, threads);
    free(small);
    Py_END_ALLOW_THREADS
    return flag;
}

/* Sets the exception that a kernel's flag stands for. YIELDS. */
static void set_flagged(const entry *e, int64_t flag) {
    if (flag < 0) PyErr_NoMemory();
    if (flag < 0) return;
    PyObject *number = PyLong_FromLongLong(flag);
    PyObject *raised = number ? PyObject_CallOneArg(e->fail, number) : NULL; /* raises */
    Py_XDECREF(number);
    if (raised) PyErr_SetString(PyExc_SystemError, "a kernel's error was not raised");
    Py_XDECREF(raised);
}

/* Runs a call for new references to its outputs: 1 done, 0 Python must look, -1 an exception is set. YIELDS; `e` is counted by the
 * caller. */
static int run(const entry *e, PyObject *const *args, PyObject *out, const int64_t *numbers, int grad, PyObject **objects) {
    void *pointers[2 * MAX_PARAMS];
    int given = out != Py_None;
    int state = given ? given_outputs(e, out, grad, objects) : e->functional ? new_outputs(e, objects) : 0;
    if (state != 1) return state;
    int threads = thread_count();
    PyObject *scratch = e->workspace < torch.large ? NULL : PyObject_CallFunction(torch.large_scratch, "L", (long long)e->workspace);
    dl_tensor space = {0};
    if (PyErr_Occurred() || !addresses(e, args, objects, given, pointers) || (scratch && !viewed(scratch, &space))) {
        Py_XDECREF(scratch);
        drop(e, objects);
        return PyErr_Occurred() ? -1 : 0;
    }
    int64_t flag = launch(e, pointers, numbers, space.data, threads);
    Py_XDECREF(scratch);
    if ((!given || bump(e, objects)) && flag == 0) return 1;
    drop(e, objects);
    if (!PyErr_Occurred()) set_flagged(e, flag);
    return -1;
}

/* ------------------------------------------------------------------ recorded calls */

/* A call that waits for autograd to call `forward`, which it does in the same thread; what comes in between, as the garbage collector
 * may, has calls of its own, and leaves `waiting` as it was. */
typedef struct pending {
    const entry *e;
    PyObject *args;
    const int64_t *numbers;
    int missed; /* Python must look */
    struct pending *outer;
} pending;
static _Thread_local pending *waiting;

/* New references to what is at these places. */
static PyObject *gathered(const entry *e, PyObject *const *args, PyObject *const *objects, const int64_t *places, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *one = places[i] < e->params ? args[places[i]] : objects[places[i] - e->params];
        Py_INCREF(one);
        PyTuple_SET_ITEM(tuple, i, one);
    }
    return tuple;
}

/* Sets an attribute to a value whose reference it takes; 0 with an exception set. YIELDS. */
static int set(PyObject *object, PyObject *name, PyObject *value) {
    const int bad = !value || PyObject_SetAttr(object, name, value);
    Py_XDECREF(value);
    return !bad;
}

/* What the backward gets, and which results have no derivatives: as `Recording.record` in Python; 0 with an exception set. YIELDS. */
static int tell_node(const entry *e, PyObject *node, PyObject *const *args, PyObject *const *objects) {
    const recording *r = &e->record;
    const int64_t *place = r->place;
    if (PyObject_SetAttr(node, str_materialize_grads, Py_False)) return 0;
    if (r->kept && !set(node, str_to_save, gathered(e, args, objects, place, r->kept))) return 0;
    place += r->kept;
    PyObject *scalars = r->scalars ? gathered(e, args, objects, place, r->scalars) : NULL;
    if (r->scalars && !scalars) return 0;
    PyObject *recorded = scalars ? PyTuple_Pack(2, PyTuple_GET_ITEM(r->state, 0), scalars) : (Py_INCREF(r->state), r->state);
    Py_XDECREF(scalars);
    if (!set(node, str_recorded, recorded)) return 0;
    place += r->scalars;
    return !r->constants || set(node, str_non_differentiable, gathered(e, args, objects, place, r->constants));
}

/* forward(ctx, *args) of the call that waits. YIELDS. */
static PyObject *forward(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    pending *call = waiting;
    if (!call || !call->e || n != call->e->params + 1) return PyErr_SetString(PyExc_RuntimeError, "no recorded call waits"), NULL;
    const entry *e = call->e;
    call->e = NULL;
    PyObject *objects[MAX_PARAMS], *const *args = &PyTuple_GET_ITEM(call->args, 0);
    const int state = run(e, args, Py_None, call->numbers, 0, objects);
    if (state != 1) {
        call->missed = !state;
        if (!state) PyErr_SetString(PyExc_RuntimeError, "the arguments changed");
        return NULL;
    }
    if (tell_node(e, given[0], args, objects)) return results(e, objects, e->record.returned);
    drop(e, objects);
    return NULL;
}

/* YIELDS; `e` is counted by the caller. */
static PyObject *recorded(const entry *e, PyObject *args, const int64_t *numbers) {
    pending call = {.e = e, .args = args, .numbers = numbers, .outer = waiting};
    waiting = &call;
    PyObject *result = PyObject_Call(e->record.apply, args, NULL);
    waiting = call.outer;
    if (!call.missed) return result;
    Py_XDECREF(result);
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

/* The attributes of a class in whose own dictionary most are that are asked for. torch asks for some at each call by names that it makes
 * anew, which the cache of all types does not know. */
static PyObject *flat_attribute(PyObject *class, PyObject *name) {
    PyObject *value = PyDict_GetItemWithError(((PyTypeObject *)class)->tp_dict, name);
    if (!value && PyErr_Occurred()) return NULL;
    if (!value || (Py_TYPE(value)->tp_descr_get && !PyFunction_Check(value))) return PyType_Type.tp_getattro(class, name);
    Py_INCREF(value);
    return value;
}

/* call(args, out, unchecked) */
static PyObject *launcher_call(launcher *self, PyObject *const *given, Py_ssize_t n) {
    int64_t numbers[MAX_NUMBERS];
    if (n != 3 || !PyTuple_Check(given[0])) return PyErr_SetString(PyExc_TypeError, "call(args, out, unchecked)"), NULL;
    PyObject *const *args = &PyTuple_GET_ITEM(given[0], 0);
    int unchecked = given[2] == Py_True;
    if (self->count == 0 || PyTuple_GET_SIZE(given[0]) != self->params || (!unchecked && given[2] != Py_False)) Py_RETURN_NOTIMPLEMENTED;
    if (!plain_state()) Py_RETURN_NOTIMPLEMENTED;
    int grad = !gives(torch.grad_enabled, Py_False);
    uint32_t requires = 0;
    int held = 0; /* whether a tensor holds a number: of these nothing is recorded here */
    for (int i = 0; i < self->params; i++) {
        const int is_number = self->kinds[i] != 't';
        if (is_number && !is_tensor(args[i])) continue;
        if (!plain(args[i])) Py_RETURN_NOTIMPLEMENTED;
        if (grad && requires_grad(args[i])) requires |= (uint32_t)1 << i;
        held |= is_number;
    }
    if (requires && (held || given[1] != Py_None)) Py_RETURN_NOTIMPLEMENTED;
    entry *e = find(self, args, unchecked, requires, numbers);
    if (!e) Py_RETURN_NOTIMPLEMENTED;
    e->references++;
    PyObject *result = Py_NotImplemented, *objects[MAX_PARAMS];
    if (requires) {
        result = recorded(e, given[0], numbers);
    } else {
        const int state = run(e, args, given[1], numbers, grad, objects);
        if (state < 0) result = NULL;
        else if (state) result = results(e, objects, e->outputs);
        else Py_INCREF(result);
    }
    release(e);
    return result;
}

static void launcher_dealloc(launcher *self) {
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < self->count; i++) release(self->entries[i]);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static Py_ssize_t launcher_length(launcher *self) { return self->count; }

static PyMethodDef launcher_methods[] = {
    {"call", (PyCFunction)(void (*)(void))launcher_call, METH_FASTCALL, "call(args, out, unchecked): the result, or NotImplemented"},
    {"add", (PyCFunction)launcher_add, METH_VARARGS,
     "add(address, checked, functional, params, outputs, numbers, workspace, keep, fail, recording)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot launcher_slots[] = {
    {Py_tp_methods, launcher_methods},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_mp_length, launcher_length},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};
static PyType_Spec launcher_spec = {"tcjit._launcher.Launcher", sizeof(launcher), 0, Py_TPFLAGS_DEFAULT, launcher_slots};

static PyType_Slot flat_slots[] = {{Py_tp_getattro, flat_attribute}, {0, NULL}};
static PyType_Spec flat_spec = {"tcjit._launcher.Flat", 0, 0, Py_TPFLAGS_DEFAULT, flat_slots};

static PyMethodDef module_methods[] = {
    {"configure", configure, METH_VARARGS, "what torch offers; False when this torch cannot be used"},
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, "forward(ctx, *args) of a torch.autograd.Function: a recorded call"},
    {"force_threads", force_threads, METH_O, "the number of threads from now on; 0 for torch's"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "tcjit._launcher", NULL, -1, module_methods};

static const struct {
    PyObject **at;
    const char *text;
} names[] = {
    {&str_requires_grad, "requires_grad"}, {&str_level, "_current_level"},
    {&str_to_save, "to_save"},             {&str_materialize_grads, "materialize_grads"},
    {&str_recorded, "recorded"},           {&str_non_differentiable, "non_differentiable"},
};

PyMODINIT_FUNC PyInit__launcher(void) {
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *type = module ? PyType_FromSpec(&launcher_spec) : NULL;
    PyObject *flat = module ? PyType_FromSpecWithBases(&flat_spec, (PyObject *)&PyType_Type) : NULL;
    int bad = !type || !flat;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) bad |= !(*names[i].at = PyUnicode_InternFromString(names[i].text));
    bad = bad || PyModule_AddIntConstant(module, "ENTRIES", MAX_ENTRIES) || PyModule_AddObjectRef(module, "Launcher", type) ||
          PyModule_AddObjectRef(module, "Flat", flat);
    Py_XDECREF(type);
    Py_XDECREF(flat);
    if (bad) Py_CLEAR(module);
    return module;
}
