/* Which lines of memory the replay follows, and the set and home of each; l2.py says why they are drawn so.
 *
 * Pages of memory follow one another around the sets, but for a shuffle among neighbours and a new beginning every
 * `run_pages`; of every page the lines that fall into a followed set, one of every `stride`, are sampled, in each of a few
 * placements of the pages. Within a page short runs of lines are permuted. The arithmetic is of integers and of exact doubles, so that every machine draws the same.
 */
#ifndef IOSIM_LINES_H
#define IOSIM_LINES_H
#include "shared.h"
#include <stdlib.h>

/* A fixed integer hash (splitmix64's finaliser). */
static uint64_t mix(uint64_t x, uint64_t salt) {
    x += salt * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

/* Where page `n` would stand in its turn around the sets, shuffled. */
static double turn_of(const Sampler *a, int64_t n, int placement) {
    double drawn = (double)(mix((uint64_t)n, 2 * (uint64_t)placement + 6) >> 11) / 9007199254740992.0;
    return (double)n + a->shuffle_256ths / 256.0 * drawn;
}

/* The first set of each page, of `each` sets a page, in pages' order. Returns 0 or NO_MEMORY. */
static int32_t page_places(const Sampler *a, int64_t pages, int64_t each, int64_t sets, int placement, int64_t *place) {
    int64_t *order = malloc(sizeof(int64_t) * (size_t)(pages + 1));
    if (!order) return NO_MEMORY;
    /* Pages sorted by where they stand in their turn; slot k of the order gets the k-th run of sets. */
    for (int64_t n = 0; n < pages; n++) { /* nearly in order: an insertion is a few steps */
        double mine = turn_of(a, n, placement);
        int64_t i = n;
        for (; i > 0 && turn_of(a, order[i - 1], placement) > mine; i--) order[i] = order[i - 1];
        order[i] = n;
    }
    for (int64_t slot = 0; slot < pages; slot++) {
        int64_t n = order[slot];
        uint64_t begin = mix((uint64_t)(n / a->run_pages), 2 * (uint64_t)placement + 5) % (uint64_t)sets;
        place[n] = (slot * each + (int64_t)begin) % sets;
    }
    free(order);
    return 0;
}

/* Lines of a page that are sampled. */
typedef struct { int64_t line; int32_t set, home; } Sampled;

#define BITS 7 /* of a digit */

/* Sorts n sampled lines of a page, which begins at line `from`, by line: digit after digit, the lowest first, each into the
 * other of two rooms; returns the room where they are in the end. Equal ones stay in their order. */
static Sampled *sort_lines(Sampled *lines, Sampled *other, int n, int64_t from, int64_t page) {
    for (int low = 0; page > (int64_t)1 << low; low += BITS) {
        int begin[(1 << BITS) + 1] = {0};
        for (int i = 0; i < n; i++) begin[((lines[i].line - from) >> low & ((1 << BITS) - 1)) + 1]++;
        for (int d = 0; d < 1 << BITS; d++) begin[d + 1] += begin[d];
        for (int i = 0; i < n; i++) other[begin[(lines[i].line - from) >> low & ((1 << BITS) - 1)]++] = lines[i];
        Sampled *sorted = other;
        other = lines;
        lines = sorted;
    }
    return lines;
}

/* Home partition of the line of a twin; twins have different homes. `x` numbers the pairs of twins. */
static int32_t home_of(int64_t x, int twin) { return (int32_t)((mix((uint64_t)x, 4) + (uint64_t)twin) & 1); }

#define MIXED_LINES 256 /* pairs of twins: an H100's runs of 512 lines bring a set two lines or none (h100_l2_sets.npz) */

/* The lines of page `n` that lie in followed sets of a placement, from `to` on; returns how many. Where a page goes
 * around all sets less than twice, it is drawn which half of it comes first: tensors or heads that lie nearly a round
 * apart do not meet in every set. */
static int sample_page(const Sampler *a, int64_t n, int64_t place, int placement, Sampled *to, int count) {
    int64_t each = a->page / a->twins, round = (int64_t)a->sets * a->stride, turn = 0;
    int64_t run = each & -each, drawn_of = -1; /* a power of two that divides a page */
    uint64_t drawn = 0;
    if (run > MIXED_LINES) run = MIXED_LINES;
    if (each < 2 * round) turn = (int64_t)(mix((uint64_t)n, 2 * (uint64_t)placement + 7) & 1) * (each / 2);
    for (int64_t at = (a->stride - place % a->stride) % a->stride; at < each; at += a->stride) {
        int32_t set = (int32_t)((place + at) / a->stride % a->sets) + placement * a->sets;
        /* `at` counts sets of the page; a set has one line in each of the page's `twins` halves. */
        int64_t x = n * each + (at + turn) % each;
        if (x / run != drawn_of) {
            drawn_of = x / run;
            drawn = mix((uint64_t)drawn_of, 2 * (uint64_t)placement + 8);
        }
        /* A hash of the address permutes the lines of a run by an exclusive or. The run fills the sets that it would fill
         * in order, but a head's rows among other heads' rows, a power of two apart, do not all meet in a few of them. */
        int64_t both = (int64_t)(drawn & (uint64_t)(run - 1)), second = (int64_t)(drawn >> 32) & (a->twin_lines - 1) & (run - 1);
        for (int twin = 0; twin < a->twins; twin++, count++) {
            int64_t y = x ^ both;
            if (twin) y ^= second; /* twins lie now near each other, now far apart */
            int64_t line = y / a->twin_lines * (a->twin_lines * a->twins) + y % a->twin_lines + twin * a->twin_lines;
            to[count] = (Sampled){line, set, home_of(x, twin)};
        }
    }
    return count;
}

/* Samples all pages, object after object; see iosim_sample. */
static int64_t sample_pages(const Sampler *a, const int32_t *size, int64_t objects, int64_t pages, const int64_t *places,
                            Sampled *rooms[2], int32_t *first, int32_t *object, uint32_t *place) {
    int64_t o = 0, next = objects ? (size[0] + a->line_bytes - 1) / a->line_bytes : 0, taken = 0;
    first[0] = 0;
    for (int64_t n = 0; n < pages; n++) {
        int count = 0;
        for (int p = 0; p < a->placements; p++) count = sample_page(a, n, places[p * pages + n], p, rooms[0], count);
        const Sampled *found = sort_lines(rooms[0], rooms[1], count, n * a->page, a->page);
        for (int i = 0; i < count; i++) {
            while (o < objects && next <= found[i].line) {
                first[++o] = (int32_t)taken;
                if (o < objects) next += (size[o] + a->line_bytes - 1) / a->line_bytes;
            }
            if (o == objects) break;
            object[taken] = (int32_t)o;
            place[taken++] = (uint32_t)found[i].set * 2 + (uint32_t)found[i].home;
        }
    }
    while (o < objects) first[++o] = (int32_t)taken;
    return taken;
}

#endif
