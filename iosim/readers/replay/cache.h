/* The L2 of the replay: one partition or several, followed line by line in a regular sample of their sets, and the cache at
 * the memory's side behind them, where there is one.
 *
 * Of two partitions of one L2, every line has a home partition; an SM looks in its own partition, and what is not there is asked of the home, so that
 * data read from both sides is kept twice. Written lines go home; the writer's side keeps a copy, the other side's is
 * dropped. Sets replace their least recently used line; where that is dirty it is written back and stays, and the oldest
 * clean line goes in its place; a line that was loaded for the last time goes first. A set with as many dirty lines as it may have writes the oldest back before it takes a line.
 *
 * Partitions that are L2s of their own ask memory alone. A line that one of them writes is no longer in the others, and
 * what is dirty when a launch ends is written back and stays. The cache at the memory's side takes what is read and what
 * is written, holds nothing dirty, and each L2's misses look there first.
 */
#ifndef IOSIM_CACHE_H
#define IOSIM_CACHE_H
#include "shared.h"
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* A fixed integer hash. */
static inline uint32_t hash32(uint32_t x) {
    x ^= x >> 16; x *= 0x7feb352dU; x ^= x >> 15; x *= 0x846ca68bU; x ^= x >> 16;
    return x;
}

static inline int64_t spread(uint32_t key, int64_t of, int64_t ppm) {
    return of * ((int64_t)(hash32(key) & 0xffff) - 32768) / 32768 * ppm / 1000000;
}

#define WHOLE inline __attribute__((always_inline)) /* for what is compiled for each of its constant arguments */
#define APART __attribute__((noinline)) /* for what is rare beside the code around it */

/* ---- sampled sets ---- */

static void note_at_side(L2State *s, const L2Config *c, int32_t sample, int tensor);

static inline void write_back(L2State *s, const L2Config *c, int32_t sample) {
    int tensor = s->object[s->object_of[sample]].tensor;
    s->hbm_write[tensor] += c->sample_bytes;
    if (c->side_sets) note_at_side(s, c, sample, tensor);
    /* Memory is a queue: a transfer begins when it is free, and a read behind it waits. */
    int64_t from = s->dram_free > s->now ? s->dram_free : s->now;
    s->dram_free = from + c->sample_bytes * c->dram_write_ps_per_kib / 1024;
}

/* Whether lines have homes: two partitions of one L2. */
static inline int has_homes(const L2Config *c) { return c->partitions == 2 && !c->apart; }

/* Tags a set holds in memory: a multiple of four; those past `ways` stay empty. */
static inline int row_ways(int ways) { return (ways + 3) & ~3; }

static inline int32_t *set_of(const L2State *s, const L2Config *c, int p, int32_t sample) {
    return s->tags + ((int64_t)p * c->sets + (s->place[sample] >> 1)) * row_ways(c->ways);
}

/* A set is gone over without branches that nobody can foresee; ways are the bits of a mask. */
#ifdef __SSE2__
/* The way that holds a sampled line, or -1. */
static WHOLE int way_of(const int32_t *set, int row, int32_t sample) {
    const __m128i want = _mm_set1_epi32((int32_t)((uint32_t)sample << 1)), clean = _mm_set1_epi32(~1);
    uint32_t found = 0;
    for (int i = 0; i < row; i += 4) {
        __m128i four = _mm_and_si128(_mm_loadu_si128((const __m128i *)(set + i)), clean);
        found |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(four, want))) << i;
    }
    return found ? __builtin_ctz(found) : -1;
}

static WHOLE uint32_t dirty_ways(const int32_t *set, int row) {
    uint32_t dirty = 0;
    for (int i = 0; i < row; i += 4) {
        __m128i four = _mm_loadu_si128((const __m128i *)(set + i));
        dirty |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_andnot_si128(four, _mm_slli_epi32(four, 31)))) << i;
    }
    return dirty;
}

/* A tag comes to the front; those before way `last` move on by one, over what was there. */
static WHOLE void put_first(int32_t *set, int row, int last, int32_t tag) {
    const __m128i end = _mm_set1_epi32(last);
    __m128i before = _mm_slli_si128(_mm_cvtsi32_si128(tag), 12), way = _mm_setr_epi32(0, 1, 2, 3);
    for (int i = 0; i < row; i += 4) {
        __m128i four = _mm_loadu_si128((const __m128i *)(set + i));
        __m128i moved = _mm_or_si128(_mm_slli_si128(four, 4), _mm_srli_si128(before, 12));
        __m128i stays = _mm_cmpgt_epi32(way, end);
        _mm_storeu_si128((__m128i *)(set + i), _mm_or_si128(_mm_and_si128(stays, four), _mm_andnot_si128(stays, moved)));
        before = four;
        way = _mm_add_epi32(way, _mm_set1_epi32(4));
    }
}
#else
static WHOLE int way_of(const int32_t *set, int row, int32_t sample) {
    for (int i = 0; i < row; i++)
        if (set[i] >> 1 == sample) return i;
    return -1;
}

static WHOLE uint32_t dirty_ways(const int32_t *set, int row) {
    uint32_t dirty = 0;
    for (int i = 0; i < row; i++) dirty |= (uint32_t)(set[i] >= 0 && (set[i] & 1)) << i;
    return dirty;
}

static WHOLE void put_first(int32_t *set, int row, int last, int32_t tag) {
    (void)row;
    for (int i = last; i > 0; i--) set[i] = set[i - 1];
    set[0] = tag;
}
#endif

/* Writes a set's oldest dirty line back where it has as many as it may, before another comes or a line becomes dirty: that
 * line stays, clean. A fraction of a line is one more in that fraction of the sets. */
static WHOLE void limit_dirty(L2State *s, const L2Config *c, int32_t *set, int row, int32_t sample) {
    uint32_t dirty = dirty_ways(set, row);
    if (!dirty || __builtin_popcount(dirty) < (c->dirty_share + (int)(hash32(s->place[sample] >> 1) & 255)) >> 8) return;
    int oldest = 31 - __builtin_clz(dirty);
    write_back(s, c, set[oldest] >> 1);
    set[oldest] &= ~1;
}

/* Where a set that keeps what is dirty takes a new line: the way of the oldest clean one. A line that is loaded writes the
 * oldest dirty one back, which stays, as often as one of the set's lines taken by chance would be dirty. */
static APART int clean_victim(L2State *s, const L2Config *c, int32_t *set, int row, int32_t sample, int stores) {
    int last = c->ways - 1;
    uint32_t dirty = dirty_ways(set, row), clean = ~dirty & (((uint32_t)2 << last) - 1);
    int taken = clean ? 31 - __builtin_clz(clean) : last;
    uint32_t drawn = hash32((uint32_t)sample * 31u ^ (uint32_t)set[last] * 7u ^ (uint32_t)set[0]) & 255;
    int written = !clean || (!stores && drawn * (uint32_t)c->ways < 256u * (uint32_t)__builtin_popcount(dirty));
    if (dirty && written) {
        int oldest = clean ? 31 - __builtin_clz(dirty) : last;
        write_back(s, c, set[oldest] >> 1);
        set[oldest] &= ~1;
    }
    return taken;
}

/* Where a set takes a new line: the way of the least recently used, or of the oldest clean line where that is dirty. The
 * dirty one is written back and stays, so that it goes at the next miss. */
static WHOLE int victim(L2State *s, const L2Config *c, int32_t *set, int row, int32_t sample, int stores) {
    int last = c->ways - 1;
    if (set[last] < 0) return last;
    if (c->keeps_dirty) return clean_victim(s, c, set, row, sample, stores);
    if (!(set[last] & 1)) return last;
    write_back(s, c, set[last] >> 1);
    uint32_t clean = ~dirty_ways(set, row) & (((uint32_t)1 << last) - 1); /* the last is there: none is empty */
    set[last] &= ~1;
    return clean ? 31 - __builtin_clz(clean) : last;
}

static WHOLE void put_in_row(L2State *s, const L2Config *c, int32_t *set, int row, int32_t sample, int i, int dirty) {
    limit_dirty(s, c, set, row, sample);
    put_first(set, row, i < 0 ? victim(s, c, set, row, sample, dirty) : i, (int32_t)((uint32_t)sample << 1) | dirty);
}

/* Puts a line in that is not in its set, or makes one dirty that is at way `i`. */
static APART void put_in(L2State *s, const L2Config *c, int32_t *set, int row, int32_t sample, int i, int dirty) {
    if (row == 16) put_in_row(s, c, set, 16, sample, i, dirty);
    else put_in_row(s, c, set, row, sample, i, dirty);
}

/* Looks a line up in its set, puts it in where it is not there, and makes it the latest used; returns whether it was there.
 * Tags hold the sample and, in the lowest bit, whether the line is dirty. */
static inline int touch(L2State *s, const L2Config *c, int p, int32_t sample, int dirty) {
    int32_t *set = set_of(s, c, p, sample);
    if (set[0] >> 1 == sample && (set[0] & 1) >= dirty) return 1; /* as it is */
    int row = row_ways(c->ways), i = row == 16 ? way_of(set, 16, sample) : way_of(set, row, sample); /* 16: unrolled */
    if (i < 0 || (set[i] & 1) < dirty) put_in(s, c, set, row, sample, i, dirty);
    else if (row == 16) put_first(set, 16, i, set[i]);
    else put_first(set, row, i, set[i]);
    return i >= 0;
}

/* Looks a line up in the cache at the memory's side, and puts it in where it is not there; returns whether it was. */
static APART int look_at_side(L2State *s, const L2Config *c, int32_t sample) {
    int row = row_ways(c->side_ways);
    int32_t *set = s->side_tags + (int64_t)s->side_set[sample] * row;
    int i = way_of(set, row, sample);
    put_first(set, row, i < 0 ? c->side_ways - 1 : i, (int32_t)((uint32_t)sample << 1));
    return i >= 0;
}

/* A line is written through the cache at the memory's side. */
static APART void note_at_side(L2State *s, const L2Config *c, int32_t sample, int tensor) {
    s->drained[tensor] += c->sample_bytes;
    look_at_side(s, c, sample);
}

/* Takes a copy out of its set. */
static inline void drop(L2State *s, const L2Config *c, int p, int32_t sample) {
    int32_t *set = set_of(s, c, p, sample);
    int i = way_of(set, row_ways(c->ways), sample);
    if (i < 0) return;
    for (; i < c->ways - 1; i++) set[i] = set[i + 1];
    set[i] = NIL;
}

static inline int is_load(int mode) { return mode == LOAD || mode == LAST_LOAD; }

/* A line was loaded for the last time: it goes before all others of its set. A dirty one keeps its place until it is written
 * back. */
static APART void goes_first(L2State *s, const L2Config *c, int p, int32_t sample) {
    int32_t *set = set_of(s, c, p, sample);
    int i = way_of(set, row_ways(c->ways), sample), tag = set[i];
    if (tag & 1) return;
    for (; i < c->ways - 1 && set[i + 1] >= 0; i++) set[i] = set[i + 1];
    set[i] = tag;
}

/* Takes a line out of all L2s but one; where it is dirty it is written back first. */
static APART void drop_others(L2State *s, const L2Config *c, int p, int32_t sample) {
    for (int other = 0; other < c->partitions; other++) {
        const int32_t *set = set_of(s, c, other, sample);
        int i = other == p ? -1 : way_of(set, row_ways(c->ways), sample);
        if (i < 0) continue;
        if (set[i] & 1) write_back(s, c, sample);
        drop(s, c, other, sample);
    }
}

/* Writes back whatever is dirty; it stays. */
static void clean_all(L2State *s, const L2Config *c) {
    for (int64_t i = 0, n = (int64_t)c->partitions * c->sets * row_ways(c->ways); i < n; i++)
        if (s->tags[i] >= 0 && (s->tags[i] & 1)) {
            write_back(s, c, s->tags[i] >> 1);
            s->tags[i] &= ~1;
        }
}

/* A store or an atomic add from partition p: the line's home has it, dirty; a store's copy stays at p. Returns whether it
 * was at home. */
static inline int write_line(L2State *s, const L2Config *c, int mode, int home, int p, int32_t sample) {
    /* One L2 of two partitions: home has the line dirty, and a store's writer keeps a clean copy;
     * L2s of their own: p is home, and nobody else has the line any more. */
    int there = touch(s, c, home, sample, 1);
    if (c->partitions < 2) return there;
    if (c->apart) {
        drop_others(s, c, p, sample);
        return there;
    }
    if (mode == STORE && home != p) touch(s, c, p, sample, 0);
    else drop(s, c, 1 - home, sample); /* check.h: there are two */
    return there;
}

/* A load from partition p: whether its own side or the line's home has it, which keep it now. `far` counts what is asked of
 * the other side. */
static WHOLE int load_line(L2State *s, const L2Config *c, int home, int p, int32_t sample, int *far) {
    if (touch(s, c, p, sample, 0)) return 1;
    if (home == p) return 0;
    (*far)++;
    return touch(s, c, home, sample, 0);
}

/* Where a line stood in the order of last use of its set: only kept for a trace. */
static APART void note_depth(Trace *tr, const L2Config *c, int p, int set_number, int32_t sample) {
    int32_t *order = tr->order + ((int64_t)p * c->sets + set_number) * MAX_DEPTH;
    uint8_t *seen = tr->seen + (int64_t)p * tr->samples + sample;
    int i = 0;
    while (i < MAX_DEPTH - 1 && order[i] != sample && order[i] != NIL) i++;
    if (*seen) tr->depth[order[i] == sample ? i : MAX_DEPTH]++;
    else tr->first++;
    *seen = 1;
    memmove(order + 1, order, sizeof(int32_t) * (size_t)i);
    order[0] = sample;
}

/* The time bin of a moment: those before the first and after the last are its. */
static inline int64_t bin_of(const Trace *tr, int64_t t) {
    int64_t b = (t - tr->from_ps) / tr->bin_ps;
    return b < 0 ? 0 : b >= tr->bins ? tr->bins - 1 : b;
}

/* What of each tensor lies in the L2 as a time bin begins: only kept for a trace that asks for it. A line that both
 * partitions have counts twice. */
static inline void note_kept(const L2State *s, const L2Config *c, Trace *tr, int64_t t) {
    int64_t b = bin_of(tr, t), bytes[MAX_TENSORS] = {0};
    if (tr->kept > b) return;
    for (int64_t i = 0, n = (int64_t)c->partitions * c->sets * row_ways(c->ways); i < n; i++)
        if (s->tags[i] >= 0) bytes[s->object[s->object_of[s->tags[i] >> 1]].tensor] += c->sample_bytes;
    for (; tr->kept <= b; tr->kept++) memcpy(tr->bin_kept + tr->kept * MAX_TENSORS, bytes, sizeof bytes);
}

/* Bytes of an object that the small steps of an access move. */
static inline int64_t moved_bytes(const L2State *s, int64_t bytes) {
    return s->whole > 1 ? bytes * s->stands / s->whole : bytes;
}

/* An L2 reads `bytes` of an object from memory, `deep` of them from beyond the cache at its side; where there is none, all. */
static APART int64_t fetch(L2State *s, const L2Config *c, Object *o, int64_t bytes, int64_t deep, int64_t t) {
    /* Through two queues, one after the other: the cache at the memory's side where there is one,
     * then memory for what that does not have. An object arrives when its last byte has. */
    int64_t moved = moved_bytes(s, deep), at = t;
    if (c->side_sets) {
        int64_t passed = moved_bytes(s, bytes), from = s->side_free > t ? s->side_free : t;
        s->filled[o->tensor] += passed;
        s->side_free = from + passed * c->side_ps_per_kib / 1024;
        at = s->side_free + c->side_latency_ps * s->stands;
    }
    s->hbm_read[o->tensor] += moved;
    if (deep > 0) {
        int64_t from = s->dram_free > t ? s->dram_free : t;
        s->dram_free = from + moved * c->dram_ps_per_kib / 1024;
        int64_t there = s->dram_free + c->dram_latency_ps * s->stands * s->latencies;
        if (there > at) at = there;
    }
    if (s->whole > 1 && bytes < o->size) { /* the small steps that hit wait for nothing */
        int64_t wait = at - t - s->covered_ps;
        at = t + s->covered_ps + (wait > 0 ? wait * bytes / o->size : 0);
    }
    if (at > o->ready) o->ready = at;
    return at;
}

/* Whether there is more than one L2: several, or a cache behind it. */
static inline int has_levels(const L2Config *c) { return c->apart || c->side_sets; }

/* One access of an object by an SM of partition p at time t; returns when the data are there. `levels`, as above, is a
 * constant where it is compiled. */
static WHOLE int64_t access_object(L2State *s, const L2Config *c, int mode, int64_t number, int p, int64_t t, Trace *tr,
                                   const int levels) {
    Object *o = s->object + number;
    int64_t bytes = o->size;
    int two = levels ? has_homes(c) : c->partitions == 2, missing = 0, far = 0, beyond = 0;
    if (t > s->now) s->now = t;
    /* The L2 is a queue as well: bytes at its bandwidth, then its latency. */
    int64_t from = s->l2_free > t ? s->l2_free : t;
    s->l2_free = from + moved_bytes(s, bytes) * c->l2_ps_per_kib / 1024;
    int64_t at = s->l2_free + c->l2_latency_ps * s->stands;
    /* Followed lines stand for the object's bytes, but for its first load: that one is exact. */
    int fresh = !o->touched;
    o->touched = 1;
    for (int32_t x = o->first, end = o->first + o->samples; x < end; x++) {
        int home = two ? (int)(s->place[x] & 1) : p;
        int there;
        if (is_load(mode)) {
            if (tr && tr->order) note_depth(tr, c, p, (int)(s->place[x] >> 1), x);
            there = load_line(s, c, home, p, x, &far);
            if (mode == LAST_LOAD) goes_first(s, c, p, x);
        } else {
            if (home != p) far++;
            there = write_line(s, c, mode, home, p, x);
        }
        if (there) continue;
        missing++;
        if (levels && c->side_sets && mode != STORE) beyond += !look_at_side(s, c, x);
        if (!fresh && mode != STORE) s->lost[s->place[x] >> 1]++;
    }
    s->fabric += far * c->sample_bytes;
    int64_t lost = fresh ? bytes : missing * c->sample_bytes;
    if (mode == STORE) return at;
    if (tr && tr->bin_ps > 0) {
        int64_t b = bin_of(tr, t);
        tr->bin_hit[b * MAX_TENSORS + o->tensor] += bytes - lost; /* below 0 where its lines weigh more than it */
        tr->bin_miss[b * MAX_TENSORS + o->tensor] += lost;
    }
    if (far) at += s->whole > 1 ? c->far_latency_ps * s->stands * far / o->samples : c->far_latency_ps;
    if (lost > 0) {
        int64_t deep = levels && c->side_sets && !fresh ? beyond * c->sample_bytes : lost;
        int64_t x = fetch(s, c, o, lost, deep, t);
        if (fresh) { /* the first to come reads all of it */
            int64_t rest = bytes - moved_bytes(s, bytes);
            s->hbm_read[o->tensor] += rest;
            if (levels && c->side_sets) s->filled[o->tensor] += rest;
        } else s->again += moved_bytes(s, deep);
        if (levels) o->fetched_by = (uint16_t)p;
        if (x > at) at = x;
    }
    /* A hit on what another CTA has under way arrives when that does. */
    else if (o->ready > at && (!levels || !c->apart || o->fetched_by == p)) at = o->ready;
    return at;
}

#endif
