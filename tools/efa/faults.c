/* What goes wrong at NICs and cables, as a line of words says (README.md lists them). */
#define _GNU_SOURCE
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 5, ALL = -1 };

/* A number that is not negative, and nothing behind it. */
static bool number(const char *word, double *value) {
    char *end;
    if (!word || !*word) return false;
    *value = strtod(word, &end);
    return !*end && *value >= 0 && *value < 1e12;
}

/* A NIC's number, or "all". */
static bool which(const struct fabric *fabric, const char *word, int *nic) {
    double value;
    if (word && !strcmp(word, "all")) {
        *nic = ALL;
        return true;
    }
    if (!number(word, &value) || value >= fabric->nics || value != (int)value) return false;
    *nic = (int)value;
    return true;
}

/* ---- Faults of a NIC's that take effect at once ---- */

/* Calls with each program that has a queue pair on it, once. */
static void each_owner(struct nic *nic, void (*call)(struct nic *, struct owner *, enum event), enum event event) {
    for (int i = 0; i < MAX_QPS; i++) {
        bool seen = !nic->qps[i];
        for (int k = 0; k < i && !seen; k++) seen = nic->qps[k] && nic->qps[k]->owner == nic->qps[i]->owner;
        if (!seen) call(nic, nic->qps[i]->owner, event);
    }
}

static void report(struct nic *nic, struct owner *owner, enum event event) {
    enum { THE_PORT = 1 };
    nic->fabric->host->event(owner, event, event == EVENT_DEVICE_FATAL ? 0 : THE_PORT);
}

static void qps_in_error(struct nic *nic) {
    for (int i = 0; i < MAX_QPS; i++) {
        struct qp *qp = nic->qps[i];
        if (!qp || qp->state == QP_ERROR) continue;
        qp_set_state(qp, QP_ERROR);
        nic->fabric->host->event(qp->owner, EVENT_QP_FATAL, qp->element);
    }
}

static void overrun(struct nic *nic) {
    for (int i = 0; i < MAX_QPS; i++)
        if (nic->qps[i] && nic->qps[i]->send_cq) cq_overrun(nic, nic->qps[i]->send_cq);
}

static void lose_handles(struct nic *nic) {
    for (int i = 0; i < MAX_AHS; i++) nic->ahs[i].lost = nic->ahs[i].users > 0;
    for (int i = 0; i < MAX_QPS; i++)
        for (struct operation *op = nic->qps[i] ? nic->qps[i]->first : NULL; op; op = op->next) op->bad_ah = true;
}

static const char *send_event(struct nic *nic, const char *name) {
    if (name && !strcmp(name, "port-down")) {
        nic->port_down = true;
        each_owner(nic, report, EVENT_PORT_ERROR);
    } else if (name && !strcmp(name, "port-up")) {
        nic->port_down = false;
        each_owner(nic, report, EVENT_PORT_ACTIVE);
    } else if (name && !strcmp(name, "fatal")) {
        each_owner(nic, report, EVENT_DEVICE_FATAL);
    } else {
        return "event: port-down, port-up or fatal";
    }
    return NULL;
}

/* ---- The line ---- */

static const char *of_nic(struct nic *nic, const char *fault, const char *value, uint64_t now) {
    struct trouble *trouble = &nic->trouble;
    const struct {
        const char *name;
        uint64_t *field;
        uint64_t base;
        double unit;
    } amounts[] = {
        {"hang", &trouble->hung_until, now, 1e6}, {"not-ready", &trouble->not_ready_until, now, 1e6},
        {"delay", &trouble->delay_us, 0, 1},      {"reorder", &trouble->reorder_us, 0, 1},
        {"rate", &trouble->rate_mbps, 0, 1},      {"max-pages", &trouble->max_pages, 0, 1},
    };
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        double amount;
        if (strcmp(fault, amounts[i].name)) continue;
        if (!number(value, &amount)) return "a number is missing behind it";
        *amounts[i].field = amounts[i].base + (uint64_t)(amount * amounts[i].unit);
        return NULL;
    }
    if (!strcmp(fault, "event")) return send_event(nic, value);
    if (!strcmp(fault, "pieces") && value) {
        trouble->pieces = !strcmp(value, "on");
        return NULL;
    }
    if (value) return "no such fault of a NIC, or too many words";
    if (!strcmp(fault, "dead")) trouble->dead = true;
    else if (!strcmp(fault, "whole")) memset(trouble, 0, sizeof *trouble);
    else if (!strcmp(fault, "reset")) nic->fabric->host->reset(nic);
    else if (!strcmp(fault, "qp-error")) qps_in_error(nic);
    else if (!strcmp(fault, "overrun")) overrun(nic);
    else if (!strcmp(fault, "lose-handles")) lose_handles(nic);
    else return "no such fault of a NIC";
    return NULL;
}

static const char *of_cable(struct fabric *fabric, int a, int b, const char *what) {
    bool cut = !strcmp(what, "cut");
    if (!cut && strcmp(what, "whole")) return "cable NIC NIC: cut or whole";
    for (int i = 0; i < fabric->nics; i++)
        for (int k = 0; k < fabric->nics; k++)
            if ((a == ALL || a == i) && (b == ALL || b == k)) fabric->cut[i][k] = fabric->cut[k][i] = cut;
    return NULL;
}

const char *fault_apply(struct fabric *fabric, const char *line, uint64_t now) {
    char copy[128], *words[MAX_WORDS + 1] = {0}, *rest = copy;
    int count = 0, nic, other;
    if (strlen(line) >= sizeof copy) return "too long";
    strcpy(copy, line);
    while (count <= MAX_WORDS && (words[count] = strtok_r(rest, " \n", &rest))) count++;
    if (count < 3 || count > 4 || !which(fabric, words[1], &nic)) return "nic NIC FAULT [VALUE], or cable NIC NIC cut|whole";
    fabric->work++;
    if (!strcmp(words[0], "cable"))
        return count == 4 && which(fabric, words[2], &other) ? of_cable(fabric, nic, other, words[3]) : "cable NIC NIC cut|whole";
    if (strcmp(words[0], "nic")) return "nic or cable";
    for (int i = 0; i < fabric->nics; i++) {
        const char *wrong = nic == ALL || nic == i ? of_nic(&fabric->nic[i], words[2], words[3], now) : NULL;
        if (wrong) return wrong;
    }
    return NULL;
}
