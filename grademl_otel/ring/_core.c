// SPDX-License-Identifier: Apache-2.0
//
// The hot path of a ring's writing end in C: what `plaincore.Core` does in Python, to the same bytes.
//
// In a training step this code runs cold: kernels have taken the caches since the last event. What counts is
// how few cache lines and pages an event touches, so all state lies in one object, the totals are kept right
// in the mapped header, and the checksum needs no table. The global interpreter lock orders all calls.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "a ring is little-endian; the plain core packs it anywhere"
#endif

#define SLOT_BYTES 64
#define LANES 64       // of the open-phase table
#define LANE_STRIDE 32 // bytes of one of its entries
#define DEPTH 15       // phases that are open in each other; more are counted, not shown
#define BOUNDS 31
#define ROW_KIND 64 // kinds below it are those of phases
#define INTERFACE 3 // see `core`

// Indices of the totals, see `marks`; after these come, for each phase, sums and counts, then the histogram.
#define ACC_STEPS 0
#define ACC_EVAL_STEPS 1
#define ACC_INCOMPLETE 2
#define ACC_SAMPLES 3
#define ACC_COST_NS 4
#define ACC_STEP_SUM_NS 5
#define ACC_PHASE_SUM_NS 8

// Flags of a row, see `semconv`.
#define FLAG_INCOMPLETE 2
#define FLAG_EVALUATE 4

typedef struct {
    uint64_t seq;
    uint32_t check;
    uint16_t kind;
    uint16_t lane;
    int64_t number[6]; // t0, t1, row, x, y, z
} Slot;

_Static_assert(sizeof(Slot) == SLOT_BYTES && offsetof(Slot, kind) == 12, "a slot is packed");

typedef struct {
    uint16_t lane;
    uint16_t kind;
    uint32_t unused;
    int64_t t0;
} OpenPhase;

_Static_assert(sizeof(OpenPhase) == 16, "an entry of the open-phase table is packed");

typedef struct {
    long lane;
    int depth;
    struct {
        uint16_t kind;
        int64_t t0;
    } stack[DEPTH];
} Lane;

typedef struct {
    PyObject_HEAD
    uint64_t sequence; // of the last mark
    Slot *slots;
    uint64_t number_of_slots;
    int64_t *totals;
    int64_t *phase_sums; // in the totals; that of kind k is the k-th from 1 on
    int64_t *phase_counts;
    int64_t *histogram;
    int phases;
    uint64_t unmeasured; // bit k: phases of kind k are not recorded
    unsigned process;    // the value of `forks` in the process that owns the ring
    int lanes_in_use;
    char *open_phases;
    pid_t pid;
    int number_of_bounds;
    int64_t bounds[BOUNDS]; // of the histogram of steps, ns
    PyObject *view; // of the totals, for Python
    PyObject *bound; // what `bind` was given: a list, which keeps it alive
    uint64_t id;     // of this core among those of the process
    Py_buffer memory;
    Lane lanes[LANES];
} Core;

// Grows in each child of a fork, C code's too: there nothing may be written, the ring is the parent's.
static unsigned forks = 0;

static void forked(void) { forks++; }

// What this thread has been bound to, and in which core; only good while that core is asked.
static __thread struct {
    uint64_t core;
    PyObject *object;
} mine;

// --- The check word: zlib's crc32 of a mark's 52 bytes -----------------------------------------------------

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

// 64 bits at a time by Barrett reduction: two carry-less multiplications and no memory.
__attribute__((target("pclmul,sse2"))) static uint32_t reduce(uint64_t bits)
{
    const __m128i mu = _mm_cvtsi64_si128((long long)0xb4e5b025f7011641ULL);  // x^95 / G
    const __m128i poly = _mm_cvtsi64_si128((long long)0x00000001db710640ULL); // G - x^32
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)bits), mu, 0);
    product = _mm_clmulepi64_si128(product, poly, 0);
    return (uint32_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(product, product));
}

__attribute__((target("pclmul,sse2"))) static uint32_t checked_by_clmul(const Slot *slot, uint32_t seed)
{
    uint32_t head = (uint32_t)slot->kind | (uint32_t)slot->lane << 16;
    uint32_t crc = reduce((uint64_t)(~seed ^ head) << 32);
    for (int i = 0; i < 6; i++) {
        crc = reduce((uint64_t)slot->number[i] ^ crc);
    }
    return ~crc;
}
#endif

static uint32_t checked_by_table(const Slot *slot, uint32_t seed)
{
    // Four bits at a time: the table is one cache line, where one of bytes would be sixteen.
    static const uint32_t table[16] __attribute__((aligned(64))) = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const unsigned char *bytes = (const unsigned char *)&slot->kind;
    uint32_t crc = ~seed;
    for (size_t i = 0; i < SLOT_BYTES - offsetof(Slot, kind); i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

static uint32_t (*checked)(const Slot *, uint32_t) = checked_by_table;

static void choose_checksum(int plain)
{
    checked = checked_by_table;
#if defined(__x86_64__) && defined(__GNUC__)
    if (!plain && __builtin_cpu_supports("pclmul")) {
        checked = checked_by_clmul;
    }
#endif
}

// --- Marks -------------------------------------------------------------------------------------------------

static void put(Core *core, uint16_t kind, uint16_t lane, const int64_t number[6])
{
    uint64_t seq = ++core->sequence;
    Slot slot = {.kind = kind, .lane = lane};
    memcpy(slot.number, number, sizeof slot.number);
    // The sequence number seeds the checksum: a slot of an earlier lap never passes for this one.
    slot.check = checked(&slot, (uint32_t)seq);
    Slot *place = core->slots + seq % core->number_of_slots;
    memcpy((char *)place + sizeof seq, (char *)&slot + sizeof seq, SLOT_BYTES - sizeof seq);
    __atomic_store_n(&place->seq, seq, __ATOMIC_RELEASE);
}

static int numbers(PyObject *const *args, int count, int64_t *into)
{
    for (int i = 0; i < count; i++) {
        into[i] = PyLong_AsLongLong(args[i]);
        if (into[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static int short_number(PyObject *arg, uint16_t *into)
{
    long value = PyLong_AsLong(arg);
    if (value < 0 || value > 0xffff) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_OverflowError, "%ld does not fit into 16 bits", value);
        }
        return -1;
    }
    *into = (uint16_t)value;
    return 0;
}

static int wrong_number(const char *name, Py_ssize_t given)
{
    PyErr_Format(PyExc_TypeError, "%s() does not take %zd arguments", name, given);
    return -1;
}

static PyObject *core_write(Core *core, PyObject *const *args, Py_ssize_t given)
{
    uint16_t kind, lane;
    int64_t number[6] = {0, 0, 0, -1, 0, 0};
    if (given < 5 || given > 8) {
        wrong_number("write", given);
        return NULL;
    }
    if (short_number(args[0], &kind) || short_number(args[1], &lane) ||
        numbers(args + 2, (int)given - 2, number)) {
        return NULL;
    }
    if (core->process == forks) {
        put(core, kind, lane, number);
    }
    Py_RETURN_NONE;
}

static int is_measured(const Core *core, uint16_t kind)
{
    return kind >= ROW_KIND || !(core->unmeasured >> kind & 1);
}

static PyObject *core_phase(Core *core, PyObject *const *args, Py_ssize_t given)
{
    uint16_t kind, lane;
    int64_t number[6];
    if (given != 8) {
        wrong_number("phase", given);
        return NULL;
    }
    if (short_number(args[0], &kind) || short_number(args[1], &lane) || numbers(args + 2, 6, number)) {
        return NULL;
    }
    if (kind == 0 || kind > core->phases) {
        PyErr_Format(PyExc_ValueError, "%d is not the kind of a phase", (int)kind);
        return NULL;
    }
    if (core->process == forks && is_measured(core, kind)) {
        core->phase_sums[kind - 1] += number[1] - number[0];
        core->phase_counts[kind - 1]++;
        put(core, kind, lane, number);
    }
    Py_RETURN_NONE;
}

static PyObject *core_row(Core *core, PyObject *const *args, Py_ssize_t given)
{
    enum { SERIAL, LANE, T0, T1, STEP, FLAGS, MICRO, PASS, SAMPLES, COST, ARGUMENTS };
    int64_t given_number[ARGUMENTS];
    uint16_t lane;
    if (given != ARGUMENTS) {
        wrong_number("row", given);
        return NULL;
    }
    if (numbers(args, ARGUMENTS, given_number) || short_number(args[LANE], &lane)) {
        return NULL;
    }
    if (core->process != forks) {
        Py_RETURN_NONE;
    }
    int64_t flags = given_number[FLAGS], samples = given_number[SAMPLES], *totals = core->totals;
    int64_t micro = given_number[MICRO] < 0xffffff ? given_number[MICRO] : 0xffffff;
    int64_t number[6] = {
        given_number[T0],   given_number[T1],
        given_number[SERIAL], given_number[STEP],
        flags | micro << 8 | given_number[PASS] << 32, samples,
    };
    put(core, ROW_KIND, lane, number);
    totals[ACC_COST_NS] += given_number[COST];
    if (flags & FLAG_EVALUATE) {
        totals[ACC_EVAL_STEPS]++;
    } else if (flags & FLAG_INCOMPLETE) {
        totals[ACC_INCOMPLETE]++;
    } else {
        int64_t duration = given_number[T1] - given_number[T0];
        int bucket = 0;
        while (bucket < core->number_of_bounds && core->bounds[bucket] < duration) {
            bucket++;
        }
        totals[ACC_STEPS]++;
        totals[ACC_SAMPLES] += samples;
        totals[ACC_STEP_SUM_NS] += duration;
        core->histogram[bucket]++;
    }
    Py_RETURN_NONE;
}

// --- What runs ---------------------------------------------------------------------------------------------

static Lane *lane_of(Core *core, long number, int make)
{
    for (int i = 0; i < core->lanes_in_use; i++) {
        if (core->lanes[i].lane == number) {
            return core->lanes + i;
        }
    }
    if (!make || core->lanes_in_use == LANES) {
        return NULL; // what runs there is not shown
    }
    Lane *lane = core->lanes + core->lanes_in_use++;
    lane->lane = number;
    return lane;
}

static void show(Core *core, const Lane *lane, uint16_t kind, int64_t t0)
{
    OpenPhase *entry = (OpenPhase *)(core->open_phases + (lane - core->lanes) * LANE_STRIDE);
    OpenPhase shown = {.lane = (uint16_t)lane->lane, .kind = kind, .t0 = t0};
    *entry = shown;
}

static PyObject *core_began(Core *core, PyObject *const *args, Py_ssize_t given)
{
    uint16_t number, kind;
    int64_t t0;
    if (given != 3) {
        wrong_number("began", given);
        return NULL;
    }
    if (short_number(args[0], &number) || short_number(args[1], &kind) || numbers(args + 2, 1, &t0)) {
        return NULL;
    }
    Lane *lane = core->process == forks ? lane_of(core, number, 1) : NULL;
    if (lane != NULL) {
        if (lane->depth < DEPTH) {
            int outer = lane->depth - 1;
            if (is_measured(core, kind)) {
                lane->stack[lane->depth].kind = kind;
                lane->stack[lane->depth].t0 = t0;
                show(core, lane, kind, t0);
            } else { // its end comes, too: until then what is around it goes on being shown
                lane->stack[lane->depth].kind = outer < 0 ? 0 : lane->stack[outer].kind;
                lane->stack[lane->depth].t0 = outer < 0 ? 0 : lane->stack[outer].t0;
            }
        }
        lane->depth++;
    }
    Py_RETURN_NONE;
}

static PyObject *core_ended(Core *core, PyObject *const *args, Py_ssize_t given)
{
    uint16_t number;
    if (given != 1) {
        wrong_number("ended", given);
        return NULL;
    }
    if (short_number(args[0], &number)) {
        return NULL;
    }
    Lane *lane = core->process == forks ? lane_of(core, number, 0) : NULL;
    if (lane != NULL && lane->depth > 0 && --lane->depth < DEPTH) {
        int outer = lane->depth - 1;
        show(core, lane, outer < 0 ? 0 : lane->stack[outer].kind, outer < 0 ? 0 : lane->stack[outer].t0);
    }
    Py_RETURN_NONE;
}

// --- Whose thread this is ----------------------------------------------------------------------------------

static PyObject *core_bind(Core *core, PyObject *object)
{
    if (core->bound == NULL) {
        Py_RETURN_NONE; // garbage that is being collected
    }
    int known = PySequence_Contains(core->bound, object);
    if (known < 0 || (!known && PyList_Append(core->bound, object) < 0)) {
        return NULL;
    }
    mine.core = core->id;
    mine.object = object;
    Py_RETURN_NONE;
}

static PyObject *core_mine(Core *core, PyObject *otherwise)
{
    if (mine.core != core->id || core->process != forks) {
        return PyObject_CallObject(otherwise, NULL);
    }
    Py_INCREF(mine.object);
    return mine.object;
}

// -----------------------------------------------------------------------------------------------------------

static PyObject *core_measure_all_but(Core *core, PyObject *mask)
{
    uint64_t unmeasured = PyLong_AsUnsignedLongLong(mask);
    if (unmeasured == (uint64_t)-1 && PyErr_Occurred()) {
        return NULL;
    }
    core->unmeasured = unmeasured;
    Py_RETURN_NONE;
}

static PyObject *core_seal(Core *core, PyObject *nothing)
{
    return PyLong_FromUnsignedLongLong(core->sequence++);
}

static PyObject *core_process(Core *core, PyObject *nothing)
{
    return PyLong_FromLong(core->process == forks ? core->pid : getpid());
}

// --- The type ----------------------------------------------------------------------------------------------

static PyObject *view_of_totals(PyObject *memory, Py_ssize_t start, Py_ssize_t count)
{
    PyObject *whole = PyMemoryView_FromObject(memory);
    PyObject *part = whole == NULL ? NULL : PySequence_GetSlice(whole, start, start + 8 * count);
    PyObject *numbers = part == NULL ? NULL : PyObject_CallMethod(part, "cast", "s", "q");
    Py_XDECREF(part);
    Py_XDECREF(whole);
    return numbers;
}

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"memory", "first_slot", "slots",  "totals", "number_of_totals",
                            "phases", "open_phases", "bounds", NULL};
    PyObject *memory, *bounds;
    Py_ssize_t first_slot, slots, totals, number_of_totals, phases, open_phases;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OnnnnnnO!", names, &memory, &first_slot, &slots, &totals,
                                     &number_of_totals, &phases, &open_phases, &PyTuple_Type, &bounds)) {
        return NULL;
    }
    Core *core = (Core *)type->tp_alloc(type, 0);
    if (core == NULL) {
        return NULL;
    }
    if (PyObject_GetBuffer(memory, &core->memory, PyBUF_WRITABLE) < 0) {
        core->memory.obj = NULL;
        goto failed;
    }
    Py_ssize_t size = core->memory.len;
    if (slots < 1 || slots > size / SLOT_BYTES || first_slot < 0 || first_slot > size - slots * SLOT_BYTES ||
        open_phases < 0 || open_phases > size - LANES * LANE_STRIDE || totals < 0 || number_of_totals < 0 ||
        number_of_totals > size / 8 || totals > size - 8 * number_of_totals || phases < 0 ||
        phases >= ROW_KIND || PyTuple_GET_SIZE(bounds) > BOUNDS ||
        ACC_PHASE_SUM_NS + 2 * phases + PyTuple_GET_SIZE(bounds) + 1 > number_of_totals ||
        (first_slot | totals | open_phases) % 8 || (uintptr_t)core->memory.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "a ring of this geometry does not fit into this memory");
        goto failed;
    }
    core->number_of_bounds = (int)PyTuple_GET_SIZE(bounds);
    for (int i = 0; i < core->number_of_bounds; i++) {
        PyObject *bound = PyTuple_GET_ITEM(bounds, i);
        if (numbers(&bound, 1, &core->bounds[i])) {
            goto failed;
        }
    }
    char *base = core->memory.buf;
    core->slots = (Slot *)(base + first_slot);
    core->number_of_slots = (uint64_t)slots;
    core->totals = (int64_t *)(base + totals);
    core->phases = (int)phases;
    core->phase_sums = core->totals + ACC_PHASE_SUM_NS;
    core->phase_counts = core->phase_sums + phases;
    core->histogram = core->phase_counts + phases;
    core->open_phases = base + open_phases;
    core->process = forks;
    core->pid = getpid();
    static uint64_t cores = 0;
    core->id = ++cores;
    core->view = view_of_totals(memory, totals, number_of_totals);
    core->bound = PyList_New(0);
    if (core->view == NULL || core->bound == NULL) {
        goto failed;
    }
    return (PyObject *)core;
failed:
    Py_DECREF(core);
    return NULL;
}

static int core_traverse(Core *core, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(core));
    Py_VISIT(core->view);
    Py_VISIT(core->bound);
    return 0;
}

static int core_clear(Core *core)
{
    core->id = UINT64_MAX; // nothing is bound any more
    Py_CLEAR(core->view);
    Py_CLEAR(core->bound);
    return 0;
}

static void core_dealloc(Core *core)
{
    PyTypeObject *type = Py_TYPE(core);
    PyObject_GC_UnTrack(core);
    core_clear(core);
    if (core->memory.obj != NULL) {
        PyBuffer_Release(&core->memory);
    }
    type->tp_free((PyObject *)core);
    Py_DECREF(type);
}

static PyMethodDef core_methods[] = {
    {"write", (PyCFunction)(void (*)(void))core_write, METH_FASTCALL, NULL},
    {"phase", (PyCFunction)(void (*)(void))core_phase, METH_FASTCALL, NULL},
    {"row", (PyCFunction)(void (*)(void))core_row, METH_FASTCALL, NULL},
    {"began", (PyCFunction)(void (*)(void))core_began, METH_FASTCALL, NULL},
    {"ended", (PyCFunction)(void (*)(void))core_ended, METH_FASTCALL, NULL},
    {"bind", (PyCFunction)core_bind, METH_O, NULL},
    {"mine", (PyCFunction)core_mine, METH_O, NULL},
    {"measure_all_but", (PyCFunction)core_measure_all_but, METH_O, NULL},
    {"seal", (PyCFunction)core_seal, METH_NOARGS, NULL},
    {"process", (PyCFunction)core_process, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef core_members[] = {
    {"totals", T_OBJECT_EX, offsetof(Core, view), READONLY, NULL},
    {NULL},
};

static PyType_Slot core_slots[] = {
    {Py_tp_doc, "The hot path of a ring's writing end; see `plaincore.Core`, which does the same."},
    {Py_tp_new, core_new},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_traverse, core_traverse},
    {Py_tp_clear, core_clear},
    {Py_tp_methods, core_methods},
    {Py_tp_members, core_members},
    {0, NULL},
};

static PyType_Spec core_spec = {
    .name = "grademl_otel.ring._core.Core",
    .basicsize = sizeof(Core),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = core_slots,
};

static PyObject *use_table(PyObject *module, PyObject *yes)
{
    int plain = PyObject_IsTrue(yes);
    if (plain < 0) {
        return NULL;
    }
    choose_checksum(plain);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"use_table", use_table, METH_O, "Compute checksums as on a processor without carry-less products."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "The hot path of a ring's writing end in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void)
{
    if (pthread_atfork(NULL, NULL, forked) != 0) {
        PyErr_SetString(PyExc_ImportError, "forks cannot be followed");
        return NULL;
    }
    choose_checksum(0);
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&core_spec);
    if (type == NULL || PyModule_AddIntMacro(module, INTERFACE) < 0 ||
        PyModule_AddObject(module, "Core", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
