/* SPDX-License-Identifier: Apache-2.0
 *
 * Where values end in JSON text, without building any. jsonscan.py does the same in Python and says what each
 * function is for; whatever the bytes are, nothing outside of them is read. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MAX_DEPTH 1000
#define TOO_DEEP (-2)

static const char STRUCTURE[256] = {
    ['"'] = 1, ['['] = 1, [']'] = 1, ['{'] = 1, ['}'] = 1, [','] = 1, ['\\'] = 1,
};

/* Whether a byte of the word is 0. */
#define HAS_ZERO(word) (((word) - UINT64_C(0x0101010101010101)) & ~(word) & UINT64_C(0x8080808080808080))
/* How many bytes of a word come before the first that `HAS_ZERO` found: that one is exact, those after it may not be. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FIRST_BYTE(found) (__builtin_ctzll(found) / 8)
#else
#define FIRST_BYTE(found) 0
#endif
#define EIGHT(byte) (UINT64_C(0x0101010101010101) * (uint64_t)(byte))

/* Return what follows the string whose first character is at `at`; NULL where it does not end before `stop`. */
static const char *after_string(const char *at, const char *stop)
{
    for (;;) {
        while (stop - at >= 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            uint64_t found = HAS_ZERO(word ^ EIGHT('"')) | HAS_ZERO(word ^ EIGHT('\\'));
            if (found) {
                at += FIRST_BYTE(found);
                break;
            }
            at += 8;
        }
        while (at < stop && *at != '"' && *at != '\\')
            at++;
        if (at >= stop)
            return NULL;
        if (*at == '"')
            return at + 1;
        if (stop - at < 2)
            return NULL;
        at += 2;
    }
}

#if defined(__SSE2__)
#define BLOCK 64

/* Which of the bytes of a block are this one. */
static uint64_t which(const __m128i *block, char byte)
{
    uint64_t found = 0;
    const __m128i wanted = _mm_set1_epi8(byte);
    for (int i = 3; i >= 0; i--)
        found = found << 16 | (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block[i], wanted));
    return found;
}

/* Move `at` over whole blocks that change the depth and end nothing; return whether it is in a string then.
 * It begins outside of one. */
static int skip_blocks(const char **at, const char *stop, int *depth)
{
    const __m128i lower = _mm_set1_epi8(0x20); /* makes braces of brackets */
    uint64_t inside = 0;                       /* all ones in a string */
    while (stop - *at >= BLOCK) {
        __m128i block[4], braces[4];
        for (int i = 0; i < 4; i++) {
            block[i] = _mm_loadu_si128((const __m128i *)(*at + 16 * i));
            braces[i] = _mm_or_si128(block[i], lower);
        }
        if (which(block, '\\'))
            break;
        uint64_t quotes = which(block, '"'), strings = quotes;
        for (int shift = 1; shift < 64; shift *= 2)
            strings ^= strings << shift; /* from each quote to the next */
        strings ^= inside;
        int opened = __builtin_popcountll(which(braces, '{') & ~strings);
        int closed = __builtin_popcountll(which(braces, '}') & ~strings);
        if (*depth - closed <= 0 || *depth + opened > MAX_DEPTH)
            break;
        *depth += opened - closed;
        inside = (uint64_t)((int64_t)strings >> 63);
        *at += BLOCK;
    }
    return inside != 0;
}
#endif

static PyObject *scan(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t start, stop, end = -1, cut = -1;
    int first, depth = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nnp", &data, &start, &stop, &first))
        return NULL;
    if (start < 0 || stop > data.len || start > stop) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "not within the data");
        return NULL;
    }
    const char *base = data.buf, *at = base + start, *limit = base + stop;
#if defined(__SSE2__)
    Py_ssize_t bytewise = 0; /* before that every byte is looked at: its block may end something */
#endif
    Py_BEGIN_ALLOW_THREADS
    while (at < limit) {
#if defined(__SSE2__)
        if (depth > 0 && at - base >= bytewise) {
            int in_string = skip_blocks(&at, limit, &depth);
            bytewise = at - base + BLOCK;
            if (in_string) {
                at = after_string(at, limit);
                if (at == NULL)
                    break;
                continue;
            }
            if (at >= limit)
                break;
        }
#endif
        unsigned char byte = (unsigned char)*at;
        if (!STRUCTURE[byte]) {
            at++;
            continue;
        }
        if (byte == '"') {
            at = after_string(at + 1, limit);
            if (at == NULL)
                break;
            continue;
        }
        if (byte == '\\') { /* not JSON, and the same for what is done with numpy */
            at += limit - at > 1 && (at[1] == '"' || at[1] == '\\') ? 2 : 1;
            continue;
        }
        if (byte == ',') {
            if (depth == 0) {
                cut = at - base;
                if (first)
                    break;
            }
        } else if (byte == '[' || byte == '{') {
            if (++depth > MAX_DEPTH) {
                end = TOO_DEEP;
                break;
            }
        } else if (--depth < 0) {
            end = at - base;
            break;
        }
        at++;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return Py_BuildValue("(nn)", end, cut);
}

#define MAX_WORDS 16

typedef struct {
    const char *bytes;
    Py_ssize_t size;
} Word;

static int is_word(const Word *words, Py_ssize_t count, const char *at, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (words[i].size == size && memcmp(words[i].bytes, at, (size_t)size) == 0)
            return 1;
    return 0;
}

/* Write to `out` the elements of one array that hold a word, a comma after each; return how much was written. */
static Py_ssize_t pick(const char *at, const char *stop, const Word *words, Py_ssize_t count, char *out)
{
    const char *element = NULL;
    char *to = out;
    Py_ssize_t depth = 0;
    int holds = 0;
    while (at < stop) {
        unsigned char byte = (unsigned char)*at;
        if (!STRUCTURE[byte] || byte == '\\') {
            at++;
            continue;
        }
        if (byte == '"') {
            const char *text = at + 1;
            at = after_string(text, stop);
            if (at == NULL)
                break;
            if (element != NULL && !holds)
                holds = is_word(words, count, text, at - text - 1);
            continue;
        }
        if (byte == '[' || byte == '{') {
            if (++depth == 2 && byte == '{') {
                element = at;
                holds = 0;
            }
        } else if (byte != ',' && --depth == 1 && element != NULL) {
            if (holds) {
                size_t size = (size_t)(at + 1 - element);
                memcpy(to, element, size);
                to += size;
                *to++ = ',';
            }
            element = NULL;
        }
        at++;
    }
    return to - out;
}

static PyObject *gather(PyObject *self, PyObject *args)
{
    Py_buffer data, offsets;
    PyObject *names, *result = NULL;
    Word words[MAX_WORDS];
    char *out = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*O!", &data, &offsets, &PyTuple_Type, &names))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    Py_ssize_t rows = offsets.len / (Py_ssize_t)sizeof(int64_t) - 1;
    const int64_t *bounds = offsets.buf;
    const char *base = data.buf;
    int64_t longest = 0;
    if (count > MAX_WORDS || rows < 0 || (uintptr_t)bounds % sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "too many words, or no offsets");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(names, i), (char **)&words[i].bytes, &words[i].size) < 0)
            goto done;
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (bounds[row] < 0 || bounds[row + 1] < bounds[row] || bounds[row + 1] > data.len) {
            PyErr_SetString(PyExc_ValueError, "offsets that are not within the data");
            goto done;
        }
        if (bounds[row + 1] - bounds[row] > longest)
            longest = bounds[row + 1] - bounds[row];
    }
    /* Room for a comma after each element, even where broken text has none between them. */
    out = PyMem_Malloc(2 * (size_t)longest + 1);
    result = out == NULL ? PyErr_NoMemory() : PyList_New(rows);
    PyObject *last = NULL; /* borrowed: most rows say what the one before says */
    for (Py_ssize_t row = 0; result != NULL && row < rows; row++) {
        Py_ssize_t size = pick(base + bounds[row], base + bounds[row + 1], words, count, out);
        PyObject *picked = last;
        if (last != NULL && PyBytes_GET_SIZE(last) == size && memcmp(PyBytes_AS_STRING(last), out, size) == 0)
            Py_INCREF(picked);
        else
            picked = PyBytes_FromStringAndSize(out, size);
        if (picked == NULL) {
            Py_CLEAR(result);
            break;
        }
        PyList_SET_ITEM(result, row, picked);
        last = picked;
    }
done:
    PyMem_Free(out);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef FUNCTIONS[] = {
    {"scan", scan, METH_VARARGS, NULL},
    {"gather", gather, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_jsonscan", NULL, 0, FUNCTIONS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__jsonscan(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", 1) < 0)
        Py_CLEAR(module);
    return module;
}
