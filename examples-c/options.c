#define _POSIX_C_SOURCE 200809L

#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "Moves random pages between two processes, and checks every byte.\n"
    "\n"
    "    random_fill prefill --listen HOST:PORT [options]    fills pages, and writes them to the other side\n"
    "    random_fill decode --connect HOST:PORT [options]    asks for pages, and checks what came and what did not\n"
    "\n"
    "Start the prefill side first, or the decode side at most --timeout earlier. Port 0\n"
    "listens on a free port and says which. The two ends of this plain TCP connection only\n"
    "tell each other their Weft addresses; all else goes through Weft.\n"
    "\n"
    "Both sides:\n"
    "  --fabric NAMES        host, efa, verbs, tcp, or a libfabric provider's exact name (default: what there is)\n"
    "  --rails N             rails to open, 1 to 64 (default: one for each NIC)\n"
    "  --rail-names PATTERN  the NICs to use, as \"eth*,!eth3\"\n"
    "  --workers N           worker threads, 1 to 64 (default 1)\n"
    "  --manual              no worker threads: polling does the work\n"
    "  --timeout SECONDS     how long any one step may take (default 60)\n"
    "\n"
    "The decode side, whose request tells the other. Sizes are bytes, or as 64K, 256M, 1G:\n"
    "  --pages N             pages to ask for (default 1000)\n"
    "  --page-size SIZE      bytes of a page (default 64K)\n"
    "  --total-pages N       pages that this side's memory has (default: twice as many, and one)\n"
    "  --layers N            separately allocated buffers behind one handle (default 1)\n"
    "  --page-stride SIZE    from one page of this side to the next (default: the page size)\n"
    "  --page-offset SIZE    where in this side's page the other's page goes (default 0)\n"
    "  --adjacent            pages one behind the other, instead of random ones\n"
    "  --seed N              makes the same job again (default: the clock)\n"
    "\n"
    "Exit status: 0 when every byte was checked and right, 1 when not, 2 for a wrong command line.\n";

static _Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("random_fill: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\nrandom_fill --help tells what there is\n", stderr);
    va_end(args);
    exit(2);
}

/** A number with an optional unit (K, M, G, T: powers of 1024), from `least` to `most`. */
static uint64_t read_number(const char *name, const char *text, bool unit, uint64_t least, uint64_t most) {
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool ok = isdigit((unsigned char)text[0]) && errno == 0;
    const char *at = unit && *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (at) {
        unsigned shift = 10 * (unsigned)(at - units + 1);
        ok = ok && value <= UINT64_MAX >> shift;
        value <<= shift;
        end++;
    }
    if (!ok || *end != '\0') {
        refuse("--%s %s: not a number%s", name, text, unit ? " like 4097, 64K or 256M" : "");
    }
    if (value < least || value > most) {
        refuse("--%s %s: it must be from %llu to %llu", name, text, (unsigned long long)least,
               (unsigned long long)most);
    }
    return value;
}

static uint64_t read_seconds(const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds >= 0.001 && seconds <= 86400)) {
        refuse("--timeout %s: it must be seconds, from 0.001 to 86400", text);
    }
    return (uint64_t)(seconds * 1e9);
}

/** Splits "HOST:PORT" in place. */
static void read_place(struct options *o, const char *name, char *text) {
    char *colon = strrchr(text, ':');
    if (!colon || colon[1] == '\0') refuse("--%s %s: it must be HOST:PORT", name, text);
    *colon = '\0';
    o->host = text;
    o->port = colon + 1;
    if (text[0] == '[' && colon[-1] == ']') { /* [fe80::1]:4711 */
        colon[-1] = '\0';
        o->host++;
    }
}

enum {
    LISTEN = 'L', CONNECT = 'C', FABRIC = 'f', RAILS = 'r', RAIL_NAMES = 'n', WORKERS = 'w', MANUAL = 'm',
    TIMEOUT = 't', HELP = 'h', REQUEST = 256, PAGES, PAGE_SIZE, TOTAL_PAGES, LAYERS, PAGE_STRIDE, PAGE_OFFSET,
    ADJACENT, SEED
};

static const struct option known[] = {
    {"listen", required_argument, NULL, LISTEN},
    {"connect", required_argument, NULL, CONNECT},
    {"fabric", required_argument, NULL, FABRIC},
    {"rails", required_argument, NULL, RAILS},
    {"rail-names", required_argument, NULL, RAIL_NAMES},
    {"workers", required_argument, NULL, WORKERS},
    {"manual", no_argument, NULL, MANUAL},
    {"timeout", required_argument, NULL, TIMEOUT},
    {"help", no_argument, NULL, HELP},
    {"pages", required_argument, NULL, PAGES},
    {"page-size", required_argument, NULL, PAGE_SIZE},
    {"total-pages", required_argument, NULL, TOTAL_PAGES},
    {"layers", required_argument, NULL, LAYERS},
    {"page-stride", required_argument, NULL, PAGE_STRIDE},
    {"page-offset", required_argument, NULL, PAGE_OFFSET},
    {"adjacent", no_argument, NULL, ADJACENT},
    {"seed", required_argument, NULL, SEED},
    {NULL, 0, NULL, 0},
};

static void read_option(struct options *o, int option, const char *name, char *value) {
    const uint64_t most_bytes = UINT64_C(1) << 47;
    if (option > REQUEST && o->prefill) refuse("--%s belongs to the decode side: its request carries it", name);
    switch (option) {
    case LISTEN:
        if (!o->prefill) refuse("the decode side connects: --connect HOST:PORT");
        read_place(o, name, value);
        break;
    case CONNECT:
        if (o->prefill) refuse("the prefill side listens: --listen HOST:PORT");
        read_place(o, name, value);
        break;
    case FABRIC: o->fabric = value; break;
    case RAIL_NAMES: o->rail_names = value; break;
    case RAILS: o->rails = (uint32_t)read_number(name, value, false, 1, 64); break;
    case WORKERS: o->workers = (uint32_t)read_number(name, value, false, 1, 64); break;
    case MANUAL: o->manual = true; break;
    case TIMEOUT: o->timeout_ns = read_seconds(value); break;
    case PAGES: o->pages = read_number(name, value, false, 0, UINT32_MAX); break;
    case PAGE_SIZE: o->page_len = read_number(name, value, true, 1, most_bytes); break;
    case TOTAL_PAGES: o->total_pages = read_number(name, value, false, 1, UINT32_MAX); break;
    case LAYERS: o->layers = (uint32_t)read_number(name, value, false, 1, 65536); break;
    case PAGE_STRIDE: o->page_stride = read_number(name, value, true, 1, most_bytes); break;
    case PAGE_OFFSET: o->page_offset = read_number(name, value, true, 0, most_bytes); break;
    case ADJACENT: o->adjacent = true; break;
    case SEED: o->seed = read_number(name, value, false, 0, UINT64_MAX); break;
    case HELP: fputs(usage, stdout); exit(0);
    default: /* getopt has printed the error */
        fputs("random_fill --help tells what there is\n", stderr);
        exit(2);
    }
}

/* * Fills in what depends on other options, and rejects combinations that do not work. */
static void settle(struct options *o) {
    const uint64_t most_bytes = UINT64_C(1) << 47;
    if (!o->port) refuse("%s", o->prefill ? "--listen HOST:PORT is missing" : "--connect HOST:PORT is missing");
    if (o->total_pages == 0) o->total_pages = o->pages < UINT32_MAX / 2 ? 2 * o->pages + 1 : UINT32_MAX;
    if (o->page_stride == 0) o->page_stride = o->page_len;
    if (o->total_pages < o->pages) {
        refuse("--total-pages %llu: fewer than the %llu pages asked for", (unsigned long long)o->total_pages,
               (unsigned long long)o->pages);
    }
    if (o->page_stride < o->page_len) {
        refuse("--page-stride %llu: pages of %llu bytes would overlap", (unsigned long long)o->page_stride,
               (unsigned long long)o->page_len);
    }
    if (o->page_stride > (most_bytes - o->page_offset) / o->total_pages) {
        refuse("%llu pages, %llu bytes apart, are more than a range can hold", (unsigned long long)o->total_pages,
               (unsigned long long)o->page_stride);
    }
}

struct options options_read(int argc, char **argv) {
    struct options o = {.timeout_ns = UINT64_C(60000000000), .pages = 1000, .page_len = 65536, .layers = 1};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    o.seed = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;

    const char *role = argc > 1 ? argv[1] : "";
    if (strcmp(role, "--help") == 0 || strcmp(role, "-h") == 0) {
        fputs(usage, stdout);
        exit(0);
    }
    o.prefill = strcmp(role, "prefill") == 0;
    if (!o.prefill && strcmp(role, "decode") != 0) refuse("the first word must be prefill or decode");

    int option, index = 0;
    optind = 2;
    while ((option = getopt_long(argc, argv, "h", known, &index)) != -1) {
        read_option(&o, option, known[index].name, optarg);
    }
    if (optind < argc) refuse("%s: no such argument", argv[optind]);
    settle(&o);
    return o;
}
