/* The calls that are made for each operation: what `_pure.py` and `transfers.submit` do by ctypes, compiled.

   Nothing here calls into Python between two steps that belong together, so no signal handler comes between them. What may run
   Python (waking futures; an allocation, by the garbage collector) is followed by a look at whether its completion is still the
   next one. Arguments that are not plain go to `transfers.submit`, which raises what is to be raised. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>
#include <time.h>
#include <weft.h>

#ifndef METH_FASTCALL /* of the stable ABI since 3.10; 3.9 has the same */
#define METH_FASTCALL 0x0080
#endif

/* Py_buffer, of the stable ABI since 3.11; its members are the same since 2.6. */
typedef struct {
    void *buf, *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    void *format, *shape, *strides, *suboffsets, *internal;
} view;
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *, view *, int);
PyAPI_FUNC(void) PyBuffer_Release(view *);

#define BATCH 1024
/* The limit lets Ctrl-C take effect while a thread sleeps in C. */
#define NAP_NS 100000000
#define FUNCTIONS 8
#define ARGS_MAX 6

typedef struct pending pending;

typedef struct {
    PyObject_HEAD
    uint64_t handle, token;
    weft_queue *queue;
    /* `polling`: a thread of this process polls into `space`, if it is `era`. */
    int manual, polling;
    PyObject *operations, *events, *followers, *listeners, *over;
    /* The last one, which comes to the others with the next: who waits for each needs no table. */
    pending *newest;
    /* What the last poll took; the one at `next` has the number `number`. */
    weft_completion *space;
    int next, count;
    uint64_t number;
} leader;

struct pending {
    PyObject_HEAD
    leader *progress;
    PyObject *words, *convert, *futures, *error;
    Py_ssize_t count, taken;
    char ended;
    unsigned long long id;
    /* By the number of the last one, one that is handed out again is no second one. */
    uint64_t token, last;
    weft_completion *records, one;
};

/* Set once, by `configure` and `bind`. `make`: completions of tuples; None where they can be filled in. */
static PyTypeObject *leader_type, *pending_type, *operation_type, *completion_type;
static allocfunc allocate, allocate_completion;
static PyObject *make, *check, *wake, *fallback;
static struct {
    PyObject *function;
    void *address;
} bound[FUNCTIONS];
/* Another one in each forked child, which does not have its parent's threads. */
static int era = 1;
static int32_t (*poll_queue)(weft_queue *, weft_completion *, uint32_t, uint64_t);

static PyObject *held(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Of a call whose result does not matter. */
static int done(PyObject *result)
{
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static PyObject *completion(const weft_completion *record)
{
    PyObject *fields[] = {PyLong_FromLong(record->kind), PyLong_FromLong(record->status), PyLong_FromUnsignedLongLong(record->peer),
                          PyLong_FromUnsignedLongLong(record->previous), PyLong_FromUnsignedLongLong(record->bytes),
                          PyLong_FromLong(record->provider_errno), PyLong_FromUnsignedLong(record->rail),
                          PyLong_FromUnsignedLongLong(record->entry), PyLong_FromUnsignedLongLong(record->submit_ns),
                          PyLong_FromUnsignedLongLong(record->first_post_ns), PyLong_FromUnsignedLongLong(record->done_ns)};
    enum { FIELDS = sizeof fields / sizeof *fields };
    PyObject *made = make == Py_None ? allocate_completion(completion_type, FIELDS) : PyTuple_New(FIELDS), *plain;
    for (int i = 0; i < FIELDS; i++)
        if (made && fields[i])
            PyTuple_SetItem(made, i, fields[i]);
    if (PyErr_Occurred())
        Py_CLEAR(made);
    if (!made || make == Py_None)
        return made;
    plain = made;
    made = PyObject_CallFunctionObjArgs(make, plain, NULL);
    Py_DECREF(plain);
    return made;
}

/* Fills a new one. */
static int begin(pending *op, PyObject *progress, PyObject *words, PyObject *convert, Py_ssize_t count)
{
    if (op->progress || !PyObject_TypeCheck(progress, leader_type) || count < 1) {
        PyErr_SetString(PyExc_TypeError, "an operation is made of its Progress, once");
        return -1;
    }
    op->records = count == 1 ? &op->one : PyMem_Calloc((size_t)count, sizeof *op->records);
    op->progress = (leader *)held(progress);
    op->words = held(words);
    op->convert = held(convert);
    op->count = count;
    return op->records || PyErr_NoMemory() ? 0 : -1;
}

static int pending_init(PyObject *self, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *progress, *words, *convert;
    Py_ssize_t count = 1;
    if (!PyArg_ParseTuple(args, "OOO|n", &progress, &words, &convert, &count))
        return -1;
    return begin((pending *)self, progress, words, convert, count);
}

static int pending_traverse(PyObject *self, visitproc visit, void *arg)
{
    pending *op = (pending *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)op->progress);
    Py_VISIT(op->words);
    Py_VISIT(op->convert);
    Py_VISIT(op->futures);
    Py_VISIT(op->error);
    return 0;
}

static void pending_dealloc(PyObject *self)
{
    pending *op = (pending *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(op->words);
    Py_CLEAR(op->convert);
    Py_CLEAR(op->futures);
    Py_CLEAR(op->error);
    Py_CLEAR(op->progress);
    if (op->records != &op->one)
        PyMem_Free(op->records);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *pending_taken(PyObject *self, PyObject *Py_UNUSED(unused))
{
    pending *op = (pending *)self;
    PyObject *list = PyList_New(op->taken), *one;
    for (Py_ssize_t i = 0; list && i < PyList_Size(list); i++)
        if (!(one = completion(&op->records[i])) || PyList_SetItem(list, i, one))
            Py_CLEAR(list);
    return list;
}

static int leader_init(PyObject *self, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    leader *progress = (leader *)self;
    unsigned long long handle, queue;
    int manual;
    if (!PyArg_ParseTuple(args, "KKp", &handle, &queue, &manual))
        return -1;
    if (progress->space || !poll_queue) {
        PyErr_SetString(PyExc_TypeError, "it is made once, of a library");
        return -1;
    }
    progress->handle = handle;
    progress->queue = (weft_queue *)(uintptr_t)queue;
    progress->manual = manual;
    progress->number = 1;
    progress->over = held(Py_None);
    progress->operations = PyDict_New();
    progress->events = PyDict_New();
    progress->followers = PyDict_New();
    progress->listeners = PyDict_New();
    progress->space = PyMem_Malloc(BATCH * sizeof *progress->space);
    return progress->space && !PyErr_Occurred() ? 0 : PyErr_NoMemory() ? 0 : -1;
}

static int leader_traverse(PyObject *self, visitproc visit, void *arg)
{
    leader *progress = (leader *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)progress->newest);
    Py_VISIT(progress->operations);
    Py_VISIT(progress->events);
    Py_VISIT(progress->over);
    Py_VISIT(progress->followers);
    Py_VISIT(progress->listeners);
    return 0;
}

static void leader_dealloc(PyObject *self)
{
    leader *progress = (leader *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(progress->newest);
    Py_CLEAR(progress->operations);
    Py_CLEAR(progress->events);
    Py_CLEAR(progress->over);
    Py_CLEAR(progress->followers);
    Py_CLEAR(progress->listeners);
    PyMem_Free(progress->space);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Puts the newest to the others. */
static int grow_older(leader *progress)
{
    PyObject *op = (PyObject *)progress->newest, *key = op ? PyLong_FromUnsignedLongLong(progress->newest->token) : NULL;
    int failed = op && (!key || PyDict_SetItem(progress->operations, key, op)) ? -1 : 0;
    Py_XDECREF(key);
    if (!failed)
        Py_CLEAR(progress->newest);
    return failed;
}

static PyObject *leader_operations(PyObject *self, void *Py_UNUSED(closure))
{
    return grow_older((leader *)self) ? NULL : held(((leader *)self)->operations);
}

/* The operation with a token, if there is one; forgets it with `remove`. */
static pending *find(leader *progress, uint64_t token, bool remove)
{
    PyObject *key, *found = (PyObject *)progress->newest;
    if (found && progress->newest->token == token) {
        progress->newest = remove ? NULL : (pending *)held(found);
        return (pending *)found;
    }
    key = PyLong_FromUnsignedLongLong(token);
    found = held(key ? PyDict_GetItemWithError(progress->operations, key) : NULL);
    if (found && remove)
        PyDict_DelItem(progress->operations, key);
    Py_XDECREF(key);
    return (pending *)found;
}

/* A completion of an operation. */
static int hand_to(leader *progress, pending *op, uint64_t token, uint64_t number, PyObject *loop)
{
    if (op->last != number && op->taken < op->count) {
        op->records[op->taken++] = progress->space[progress->next];
        op->last = number;
    }
    if (op->taken < op->count)
        return 0;
    op->ended = 1;
    if (op->futures && op->futures != Py_None && done(PyObject_CallFunctionObjArgs(wake, op->futures, loop, NULL)))
        return -1;
    done((PyObject *)find(progress, token, true));
    return 0;
}

/* The event of a completion: itself, and room for what the endpoint makes of it. */
static int hand_event(leader *progress, uint64_t number)
{
    const weft_completion *record = &progress->space[progress->next];
    PyObject *cell = Py_BuildValue("[(iiKKKKKKiIKKKKKI)O]", record->kind, record->status, record->op, (uint64_t)0, record->peer, record->notify, record->bytes,
                                   record->data, record->provider_errno, record->rail, record->entry, record->submit_ns, record->first_post_ns, record->done_ns,
                                   record->previous, record->accepted, Py_None);
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    int failed = !cell || !key ? -1 : 0;
    if (!failed && progress->number == number) /* else the garbage collector has called what has led */
        failed = PyDict_SetItem(progress->events, key, cell);
    Py_XDECREF(cell);
    Py_XDECREF(key);
    return failed;
}

static int hand_out(leader *progress, PyObject *loop)
{
    while (progress->next < progress->count) {
        const uint64_t number = progress->number;
        const uintptr_t token = (uintptr_t)progress->space[progress->next].user_data;
        pending *op = token ? find(progress, token, false) : NULL;
        int failed = op ? hand_to(progress, op, token, number, loop) : token ? PyErr_Occurred() != NULL : hand_event(progress, number);
        if (!failed && progress->number == number) {
            progress->number++;
            progress->next++;
        }
        Py_XDECREF(op);
        if (failed)
            return -1;
    }
    if (PyDict_Size(progress->events) && PyDict_Size(progress->listeners))
        return done(PyObject_CallFunctionObjArgs(wake, progress->listeners, loop, NULL));
    return 0;
}

/* Polls and hands out. `status`: how many completions there were, or a status. Returns 1 if another thread leads, or -1. */
static int lead(leader *progress, uint64_t wait_ns, PyObject *loop, int32_t *status)
{
    if (progress->polling == era)
        return 1;
    while (progress->next < progress->count) {
        wait_ns = 0;
        if (hand_out(progress, loop))
            return -1;
        if (progress->polling == era)
            return 1;
    }
    progress->polling = era;
    /* It keeps the lock for a queue whose descriptor an event loop waits for: otherwise a poll may drive rails, behind locks. */
    if (loop != Py_None && !progress->manual && !wait_ns) {
        *status = poll_queue(progress->queue, progress->space, BATCH, 0);
    } else {
        Py_BEGIN_ALLOW_THREADS
        *status = poll_queue(progress->queue, progress->space, BATCH, wait_ns);
        Py_END_ALLOW_THREADS
    }
    progress->polling = 0;
    progress->next = 0;
    progress->count = *status > 0 ? *status : 0;
    if (*status > 0 && hand_out(progress, loop))
        return -1;
    if (*status < 0 && done(PyObject_CallMethod((PyObject *)progress, "_end", "iO", *status, loop)))
        return -1;
    return PyDict_Size(progress->followers) ? done(PyObject_CallMethod((PyObject *)progress, "_rouse", NULL)) : 0;
}

static PyObject *leader_lead(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const uint64_t wait_ns = count ? PyLong_AsUnsignedLongLong(args[0]) : 0;
    int32_t status;
    int led = PyErr_Occurred() ? -1 : lead((leader *)self, wait_ns, count > 1 ? args[1] : Py_None, &status);
    return led < 0 ? NULL : led ? held(Py_None) : PyLong_FromLong(status);
}

static PyObject *leader_led(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(((leader *)self)->polling == era);
}

static PyObject *leader_token(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(++((leader *)self)->token);
}

/* Leads once, which is enough for most; what remains is done by `Operation._sleep`. */
static PyObject *pending_wait(PyObject *self, PyObject *timeout)
{
    pending *op = (pending *)self;
    PyObject *result, *plain;
    if (!op->ended && op->progress) {
        const double seconds = timeout == Py_None ? 1e9 : PyFloat_AsDouble(timeout);
        const uint64_t began = timeout == Py_None ? 0 : now();
        int32_t status;
        PyErr_Clear(); /* of a timeout that is none */
        if (seconds > 0 && lead(op->progress, seconds < 0.1 ? (uint64_t)(seconds * 1e9) : NAP_NS, Py_None, &status) < 0)
            return NULL;
        if (!op->ended && began && seconds > 0)
            return PyObject_CallMethod(self, "_sleep", "dO", seconds - (double)(now() - began) / 1e9, timeout);
        if (!op->ended)
            return PyObject_CallMethod(self, "_sleep", "OO", timeout, timeout);
    }
    if ((op->error && op->error != Py_None) || op->taken != 1 || op->records->status < 0)
        return PyObject_CallMethod(self, "result", NULL);
    plain = completion(op->records);
    if (!plain || !op->convert || op->convert == Py_None)
        return plain;
    result = PyObject_CallFunctionObjArgs(op->convert, plain, NULL);
    Py_DECREF(plain);
    return result;
}

enum parameter {
    PROGRESS, FUNCTION, WORDS, ARGS, COUNT, NOTIFY, NOTIFY_DATA, COUNTER, COUNT_PAGES, LATENCY, TIMEOUT, START, DONE, GRANT,
    NOTIFY_FAILURE, EACH_PEER, DURABLE, PARAMETERS
};

static bool whole(PyObject *from, uint64_t *into)
{
    *into = PyLong_CheckExact(from) ? PyLong_AsUnsignedLongLong(from) : UINT64_MAX;
    return *into != UINT64_MAX; /* which is an error, or as rare */
}

static bool flag(PyObject *from, uint32_t bit, weft_op_options *into)
{
    into->flags |= from == Py_True ? bit : 0;
    return from == Py_True || from == Py_False;
}

/* Whether the options are plain; then they are filled in. */
static bool plain(PyObject *const *from, weft_op_options *into)
{
    PyObject *data = from[NOTIFY_DATA], *grant = from[GRANT], *timeout = from[TIMEOUT];
    if (from[START] != Py_None || from[DONE] != Py_None || !PyBytes_CheckExact(data) || PyBytes_Size(data) > WEFT_NOTIFY_DATA_MAX ||
        !PyBytes_CheckExact(grant) || (PyBytes_Size(grant) && PyBytes_Size(grant) != sizeof into->grant) ||
        !whole(from[COUNTER], &into->counter) || !flag(from[COUNT_PAGES], WEFT_COUNT_PAGES, into) ||
        !flag(from[LATENCY], WEFT_CLASS_LATENCY, into) || !flag(from[EACH_PEER], WEFT_COMPLETE_EACH_PEER, into) ||
        !flag(from[DURABLE], WEFT_DURABLE, into))
        return false;
    if (from[NOTIFY] != Py_None) {
        if (!whole(from[NOTIFY], &into->notify) || !flag(from[NOTIFY_FAILURE], WEFT_NOTIFY_FAILURE, into))
            return false;
        into->flags |= WEFT_NOTIFY;
    } else if (from[NOTIFY_FAILURE] != Py_False) {
        return false;
    }
    into->notify_data = PyBytes_Size(data) ? PyBytes_AsString(data) : NULL;
    into->notify_data_len = (uint32_t)PyBytes_Size(data);
    if (timeout != Py_None) {
        const double seconds = PyFloat_CheckExact(timeout) || PyLong_CheckExact(timeout) ? PyFloat_AsDouble(timeout) : -1;
        if (!(seconds >= 0 && seconds <= 86400))
            return false;
        into->timeout_ns = (uint64_t)(seconds * 1e9);
        into->timeout_ns += !into->timeout_ns; /* 0 would mean the default */
    }
    memcpy(&into->grant, PyBytes_AsString(grant), (size_t)PyBytes_Size(grant));
    return true;
}

static weft_status call_function(void *address, const uint64_t *arg, Py_ssize_t count, const weft_op_options *options, weft_op *id)
{
    weft_endpoint *endpoint = (weft_endpoint *)(uintptr_t)arg[0];
    void *first = (void *)(uintptr_t)arg[1], *third = (void *)(uintptr_t)arg[3];
    switch (count) {
    case 6:
        return ((__typeof__(weft_write) *)address)(endpoint, first, arg[2], third, arg[4], arg[5], options, id);
    case 4:
        return ((__typeof__(weft_write_pages) *)address)(endpoint, first, (void *)(uintptr_t)arg[2], third, options, id);
    case 3:
        return ((__typeof__(weft_write_list) *)address)(endpoint, first, arg[2], options, id);
    default:
        return ((__typeof__(weft_write_prepared) *)address)(endpoint, first, options, id);
    }
}

/* Submits what is plain, as a call with `arg`. */
static PyObject *submitted(leader *progress, void *address, PyObject *const *from, const uint64_t *arg, Py_ssize_t count,
                           weft_op_options *options)
{
    pending *op = (pending *)allocate(operation_type, 0);
    weft_status status;
    weft_op id = 0;
    if (!op || begin(op, from[PROGRESS], from[WORDS], Py_None, PyLong_AsSsize_t(from[COUNT])) || grow_older(progress)) {
        Py_CLEAR(op);
        return NULL;
    }
    op->token = ++progress->token;
    options->user_data = (void *)(uintptr_t)op->token;
    progress->newest = (pending *)held((PyObject *)op);
    Py_BEGIN_ALLOW_THREADS
    status = call_function(address, arg, count, options, &id);
    Py_END_ALLOW_THREADS
    op->id = id;
    if (status < 0) {
        done((PyObject *)find(progress, op->token, true));
        Py_CLEAR(op);
        done(PyObject_CallFunction(check, "i", status));
    }
    return (PyObject *)op;
}

static PyObject *submit(PyObject *Py_UNUSED(module), PyObject *const *from, Py_ssize_t parameters)
{
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    uint64_t arg[ARGS_MAX] = {0};
    view views[ARGS_MAX];
    int viewed = 0;
    void *address = NULL;
    PyObject *result, *all;
    if (parameters == PARAMETERS && PyObject_TypeCheck(from[PROGRESS], leader_type) && PyTuple_CheckExact(from[ARGS])) {
        const Py_ssize_t count = PyTuple_Size(from[ARGS]);
        bool good = count >= 2 && count <= ARGS_MAX && count != 5 && plain(from, &options);
        for (Py_ssize_t i = 0; good && i < count; i++) {
            PyObject *one = PyTuple_GetItem(from[ARGS], i);
            /* Of a range all are integers; the others have a structure, by its address. Numpy's integers are buffers, too. */
            good = PyLong_CheckExact(one) ? whole(one, &arg[i]) : count != 6 && !PyObject_GetBuffer(one, &views[viewed], 0);
            if (good && !PyLong_CheckExact(one))
                arg[i] = (uint64_t)(uintptr_t)views[viewed++].buf;
        }
        for (int i = 0; i < FUNCTIONS && !address; i++)
            address = bound[i].function == from[FUNCTION] ? bound[i].address : NULL;
        result = good && address ? submitted((leader *)from[PROGRESS], address, from, arg, count, &options) : NULL;
        while (viewed)
            PyBuffer_Release(&views[--viewed]);
        if (good && address)
            return result;
        PyErr_Clear();
    }
    all = PyTuple_New(parameters);
    for (Py_ssize_t i = 0; all && i < parameters; i++)
        PyTuple_SetItem(all, i, held(from[i]));
    result = all ? PyObject_CallObject(fallback, all) : NULL;
    Py_XDECREF(all);
    return result;
}

static PyObject *forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    era++;
    return held(Py_None);
}

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    if (!PyArg_ParseTuple(args, "OOOOOO", &operation_type, &completion_type, &make, &check, &wake, &fallback))
        return NULL;
    Py_INCREF(args); /* and so all of them */
    allocate = (allocfunc)PyType_GetSlot(operation_type, Py_tp_alloc);
    allocate_completion = (allocfunc)PyType_GetSlot(completion_type, Py_tp_alloc);
    return held(Py_None);
}

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long poll, address;
    PyObject *functions;
    if (!PyArg_ParseTuple(args, "KO!", &poll, &PyTuple_Type, &functions))
        return NULL;
    Py_INCREF(functions);
    for (int i = 0; i < FUNCTIONS && i < PyTuple_Size(functions); i++) {
        if (!PyArg_ParseTuple(PyTuple_GetItem(functions, i), "OK", &bound[i].function, &address))
            return NULL;
        bound[i].address = (void *)(uintptr_t)address;
    }
    *(void **)&poll_queue = (void *)(uintptr_t)poll;
    return held(Py_None);
}

static PyMethodDef pending_methods[] = {{"_taken", pending_taken, METH_NOARGS, NULL}, {"_wait", pending_wait, METH_O, NULL}, {0}};
static PyMemberDef pending_members[] = {{"_progress", T_OBJECT, offsetof(pending, progress), READONLY, NULL},
                                        {"_words", T_OBJECT, offsetof(pending, words), READONLY, NULL},
                                        {"_convert", T_OBJECT, offsetof(pending, convert), READONLY, NULL},
                                        {"_futures", T_OBJECT, offsetof(pending, futures), 0, NULL},
                                        {"_error", T_OBJECT, offsetof(pending, error), 0, NULL},
                                        {"_ended", T_BOOL, offsetof(pending, ended), 0, NULL},
                                        {"id", T_ULONGLONG, offsetof(pending, id), 0, NULL},
                                        {0}};
static PyMethodDef leader_methods[] = {{"_lead", (PyCFunction)(void *)leader_lead, METH_FASTCALL, NULL},
                                       {"_led", leader_led, METH_NOARGS, NULL},
                                       {"_token", leader_token, METH_NOARGS, NULL},
                                       {0}};
static PyMemberDef leader_members[] = {{"handle", T_ULONGLONG, offsetof(leader, handle), READONLY, NULL},
                                       {"_queue", T_ULONGLONG, offsetof(leader, queue), READONLY, NULL},
                                       {"over", T_OBJECT, offsetof(leader, over), 0, NULL},
                                       {"events", T_OBJECT, offsetof(leader, events), READONLY, NULL},
                                       {"_followers", T_OBJECT, offsetof(leader, followers), READONLY, NULL},
                                       {"_listeners", T_OBJECT, offsetof(leader, listeners), READONLY, NULL},
                                       {0}};

static PyGetSetDef pending_computed[] = {{0}}, leader_computed[] = {{"_operations", leader_operations, NULL, NULL, NULL}, {0}};

/* A type with these of its own: SPEC(pending, "Pending"). */
#define SPEC(kind, name)                                                                                                             \
    static PyType_Slot kind##_slots[] = {{Py_tp_init, kind##_init},         {Py_tp_dealloc, kind##_dealloc},                         \
                                         {Py_tp_traverse, kind##_traverse}, {Py_tp_methods, kind##_methods},                         \
                                         {Py_tp_members, kind##_members},   {Py_tp_getset, kind##_computed}, {0, NULL}};             \
    static PyType_Spec kind##_spec = {"libweft._native." name, sizeof(kind), 0,                                                      \
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, kind##_slots}
SPEC(pending, "Pending");
SPEC(leader, "Leader");

static PyMethodDef functions[] = {{"submit", (PyCFunction)(void *)submit, METH_FASTCALL, NULL},
                                  {"configure", configure, METH_VARARGS, NULL},
                                  {"bind", bind, METH_VARARGS, NULL},
                                  {"forked", forked, METH_NOARGS, NULL},
                                  {0}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "libweft._native", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = NULL;
    if (leader_type) { /* what is set once is of the first interpreter */
        PyErr_SetString(PyExc_ImportError, "libweft._native serves one interpreter");
        return NULL;
    }
    leader_type = (PyTypeObject *)PyType_FromSpec(&leader_spec);
    pending_type = (PyTypeObject *)PyType_FromSpec(&pending_spec);
    if (leader_type && pending_type && (module = PyModule_Create(&definition)) &&
        (PyModule_AddObject(module, "Leader", held((PyObject *)leader_type)) ||
         PyModule_AddObject(module, "Pending", held((PyObject *)pending_type))))
        Py_CLEAR(module);
    return module;
}
