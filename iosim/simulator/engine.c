/* Replays the tile accesses of one kernel launch through a model of the L2, in the order in which CTAs reach them.
 *
 * A CTA walks the steps of its work tile. At a step it asks for the next step's tiles and computes; its next step starts
 * when its SM is free and those tiles have arrived. CTAs of an SM share its compute units in turn.
 *
 * L2: one or two partitions, followed line by line in a regular sample of their sets. Every line has a home partition;
 * an SM looks in its own partition, and what is not there is asked of the home, so that data read from both sides is
 * kept twice. Written lines go home and are kept on both sides where `keeps_written` says so. Victims are chosen by
 * not-recently-used bits with a rotating start. Dirty victims are written back.
 *
 * All times are integers (picoseconds); the same input gives the same result on every machine.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NIL (-1)
#define MAX_DEPTH 64
#define MAX_TEMPLATES 24
#define MAX_TENSORS 64

enum { LOAD = 0, STORE = 1, REDUCE = 2 };

typedef struct {
    int32_t partitions, sets, ways, keeps_written; /* sets: sampled sets of a partition */
    int64_t sample_bytes;                          /* bytes of memory that one sampled line stands for */
    int64_t dram_ps_per_kib, l2_ps_per_kib, l2_latency_ps, far_latency_ps, dram_latency_ps;
} L2Config;

typedef struct {
    int64_t objects;
    const int32_t *size;         /* bytes of each object */
    const uint8_t *tensor;       /* its tensor */
    const int32_t *first_sample; /* its sampled lines: [first_sample[o], first_sample[o + 1]) */
    const int32_t *object_of;    /* object of each sampled line */
    const int32_t *set_of;       /* set of each sampled line */
    const uint8_t *home_of;      /* its home partition */
    uint8_t *touched;            /* whether an object was ever touched */
    int64_t *ready;              /* when an object being fetched arrives */
    int32_t *tags;               /* partition x set x way */
    uint32_t *used;              /* partition x set: the used bits */
    int64_t dram_free, l2_free, now;
    /* results */
    int64_t hbm_read[MAX_TENSORS], hbm_write[MAX_TENSORS];
    int64_t fabric;
} L2State;

typedef struct {
    int32_t mode, coef, span, rows, row_stride, pad;
    const int32_t *base; /* first object of each work tile; NIL for none */
} Template;

typedef struct {
    int32_t tiles, slots, sms, sm_spread_ppm;
    int32_t static_stride; /* persistent static list: CTA c takes c, c + stride, ...; 0 for a queue */
    int32_t group;         /* work tiles that a CTA takes together from the queue */
    int32_t n_pro, n_loop, n_epi, pad;
    Template pro[MAX_TEMPLATES], loop[MAX_TEMPLATES], epi[MAX_TEMPLATES];
    const int32_t *first, *count; /* loop index of each work tile: start and number of steps */
    const uint8_t *side;          /* partition of each SM */
    const uint8_t *down;          /* whether a work tile walks its indices from the last to the first */
    const int32_t *list;          /* NULL: indices run; else index of step s is list[first + s] */
    int64_t step_ps, start_ps;
} LaunchPlan;

typedef struct {
    int64_t bin_ps;
    int32_t bins, ctas;
    int64_t *bin_hit, *bin_miss; /* by bin x 64 tensors */
    int32_t *cta_sm;
    int64_t *cta_start, *cta_end; /* by work tile */
    int32_t *order;               /* partition x set x MAX_DEPTH samples, latest first; NULL: not kept */
    uint8_t *seen;                /* partition x sample: whether it was loaded before */
    int64_t samples, first;       /* sampled lines; loads of lines never loaded before */
    int64_t depth[MAX_DEPTH + 1]; /* other loads by depth; the last: deeper */
} Trace;

/* A fixed integer hash. */
static inline uint32_t hash32(uint32_t x) {
    x ^= x >> 16; x *= 0x7feb352dU; x ^= x >> 15; x *= 0x846ca68bU; x ^= x >> 16;
    return x;
}

static inline int64_t spread(uint32_t key, int64_t of, int64_t ppm) {
    return of * ((int64_t)(hash32(key) & 0xffff) - 32768) / 32768 * ppm / 1000000;
}

/* ---- sampled sets ---- */

static inline void write_back(L2State *s, const L2Config *c, int32_t sample) {
    s->hbm_write[s->tensor[s->object_of[sample]]] += c->sample_bytes;
    int64_t from = s->dram_free > s->now ? s->dram_free : s->now;
    s->dram_free = from + c->sample_bytes * c->dram_ps_per_kib / 1024;
}

/* Looks a line up in its set and marks it used; returns whether it was there, and puts it in where it was not.
 * Tags hold the sample and, in the lowest bit, whether the line is dirty. `used` holds a bit a way and, from bit 24, the
 * way at which the search for a victim starts. */
static inline int touch(L2State *s, const L2Config *c, int p, int32_t sample, int dirty) {
    int64_t at = (int64_t)p * c->sets + s->set_of[sample];
    int32_t *set = s->tags + at * c->ways;
    uint32_t used = s->used[at], all = (1u << c->ways) - 1;
    int ways = c->ways, i = 0;
    while (i < ways && (set[i] >> 1) != sample) i++;
    int there = i < ways;
    if (there) set[i] |= dirty;
    else {
        uint32_t start = used >> 24;
        for (int k = 0; k < ways; k++) {
            i = (int)(start + (uint32_t)k) % ways;
            if (!((used >> i) & 1)) break;
        }
        used = (used & all) | ((uint32_t)((i + 1) % ways) << 24);
        if (set[i] >= 0 && (set[i] & 1)) write_back(s, c, set[i] >> 1);
        set[i] = (int32_t)((uint32_t)sample << 1) | dirty;
    }
    used |= 1u << i;
    if ((used & all) == all) used = (used & ~all) | (1u << i);
    s->used[at] = used;
    return there;
}

/* Where a line stood in the order of last use of its set: only kept for a trace. */
static inline void note_depth(Trace *tr, const L2Config *c, int p, int set_number, int32_t sample) {
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

static inline int64_t fetch(L2State *s, const L2Config *c, int64_t o, int64_t bytes, int64_t t) {
    s->hbm_read[s->tensor[o]] += bytes;
    int64_t from = s->dram_free > t ? s->dram_free : t;
    s->dram_free = from + bytes * c->dram_ps_per_kib / 1024;
    int64_t at = s->dram_free + c->dram_latency_ps;
    if (at > s->ready[o]) s->ready[o] = at;
    return at;
}

/* One access of object o by an SM of partition p at time t; returns when the data are there. */
static int64_t access_object(L2State *s, const L2Config *c, int mode, int64_t o, int p, int64_t t, Trace *tr) {
    int64_t bytes = s->size[o];
    int two = c->partitions == 2, missing = 0, far = 0;
    if (t > s->now) s->now = t;
    int64_t from = s->l2_free > t ? s->l2_free : t;
    s->l2_free = from + bytes * c->l2_ps_per_kib / 1024;
    int64_t at = s->l2_free + c->l2_latency_ps;
    int32_t lo = s->first_sample[o], hi = s->first_sample[o + 1];
    int fresh = !s->touched[o];
    s->touched[o] = 1;
    for (int32_t x = lo; x < hi; x++) {
        int home = two ? s->home_of[x] : p;
        if (mode == LOAD) {
            if (tr && tr->order) note_depth(tr, c, p, s->set_of[x], x);
            if (touch(s, c, p, x, 0)) continue;
            if (home == p) missing++;
            else { /* asked of its home, which keeps it too */
                far++;
                if (!touch(s, c, home, x, 0)) missing++;
            }
        } else {
            if (!touch(s, c, home, x, 1)) missing++;
            if (two && c->keeps_written) touch(s, c, 1 - home, x, 0);
            if (home != p) far++;
        }
    }
    s->fabric += far * c->sample_bytes;
    int64_t lost = fresh ? bytes : missing * c->sample_bytes;
    if (mode == STORE) return at;
    if (tr && tr->bin_ps > 0) {
        int64_t b = t / tr->bin_ps;
        if (b >= tr->bins) b = tr->bins - 1;
        tr->bin_hit[b * MAX_TENSORS + s->tensor[o]] += bytes > lost ? bytes - lost : 0;
        tr->bin_miss[b * MAX_TENSORS + s->tensor[o]] += lost;
    }
    if (far) at += c->far_latency_ps;
    if (lost > 0) {
        int64_t x = fetch(s, c, o, lost, t);
        if (x > at) at = x;
    }
    else if (s->ready[o] > at) at = s->ready[o];
    return at;
}

/* ---- events ---- */

typedef struct { int64_t t; int32_t cta; int32_t seq; } Event;

static inline int before(const Event *a, const Event *b) {
    return a->t < b->t || (a->t == b->t && a->cta < b->cta);
}

static void sift_up(Event *h, int i) {
    Event x = h[i];
    while (i > 0) {
        int up = (i - 1) / 2;
        if (!before(&x, &h[up])) break;
        h[i] = h[up];
        i = up;
    }
    h[i] = x;
}

static void sift_down(Event *h, int n) {
    Event x = h[0];
    int i = 0;
    for (;;) {
        int k = 2 * i + 1;
        if (k >= n) break;
        if (k + 1 < n && before(&h[k + 1], &h[k])) k++;
        if (!before(&h[k], &x)) break;
        h[i] = h[k];
        i = k;
    }
    h[i] = x;
}

static inline int64_t run_templates(L2State *s, const L2Config *c, const Template *list, int n, int tile, int idx,
                                    int p, int64_t t, Trace *tr) {
    int64_t at = t;
    for (int k = 0; k < n; k++) {
        int64_t o = list[k].base[tile];
        if (o == NIL) continue;
        o += (int64_t)list[k].coef * idx;
        for (int r = 0; r < list[k].rows; r++)
            for (int m = 0; m < list[k].span; m++) {
                int64_t x = access_object(s, c, list[k].mode, o + (int64_t)r * list[k].row_stride + m, p, t, tr);
                if (list[k].mode == LOAD && x > at) at = x;
            }
    }
    return at;
}

typedef struct { int32_t tile, step, sm; } Cta;

static inline int loop_index(const LaunchPlan *l, int tile, int step) {
    int n = l->count[tile];
    int k = l->down[tile] ? n - 1 - step : step;
    return l->list ? l->list[l->first[tile] + k] : l->first[tile] + k;
}

/* Replays a launch; returns its end time, or -1 when memory runs out. `stop` is checked now and then. */
int64_t iosim_replay(L2State *s, const L2Config *c, const LaunchPlan *l, int64_t start, Trace *tr,
                     volatile int32_t *progress, volatile int32_t *stop) {
    int groups = l->tiles / l->group;
    int slots = l->slots < groups ? l->slots : groups;
    if (slots <= 0) return start;
    Cta *ctas = malloc(sizeof(Cta) * (size_t)slots);
    Event *heap = malloc(sizeof(Event) * (size_t)slots);
    int64_t *sm_free = calloc((size_t)l->sms, sizeof(int64_t));
    if (!ctas || !heap || !sm_free) { free(ctas); free(heap); free(sm_free); return -1; }
    int next = slots * l->group, live = 0;
    int64_t end = start;
    for (int i = 0; i < slots; i++) {
        ctas[i] = (Cta){i * l->group, -1, i % l->sms};
        heap[live] = (Event){start + l->start_ps, i, 0};
        sift_up(heap, live++);
    }
    for (int i = 0; i < l->sms; i++) sm_free[i] = start;
    uint32_t count = 0;
    while (live > 0) {
        Event ev = heap[0];
        Cta *a = &ctas[ev.cta];
        int tile = a->tile, p = l->side[a->sm], n = l->count[tile];
        int64_t again;
        if ((++count & 0xffff) == 0) {
            if (progress) *progress = next;
            if (stop && *stop) { end = -2; break; }
        }
        if (a->step < 0) {
            if (tr && tr->cta_start) { tr->cta_start[tile] = ev.t; tr->cta_sm[tile] = a->sm; }
            again = run_templates(s, c, l->pro, l->n_pro, tile, 0, p, ev.t, tr);
            if (n > 0) {
                int64_t x = run_templates(s, c, l->loop, l->n_loop, tile, loop_index(l, tile, 0), p, ev.t, tr);
                if (x > again) again = x;
            }
            a->step = 0;
        } else if (a->step < n) {
            int64_t from = ev.t > sm_free[a->sm] ? ev.t : sm_free[a->sm];
            int64_t took = l->step_ps + spread((uint32_t)a->sm + 12345U, l->step_ps, l->sm_spread_ppm);
            sm_free[a->sm] = from + took;
            again = from + took;
            if (a->step + 1 < n) {
                int64_t x = run_templates(s, c, l->loop, l->n_loop, tile, loop_index(l, tile, a->step + 1), p, from, tr);
                if (x > again) again = x;
            }
            a->step++;
        } else {
            int64_t done = ev.t;
            run_templates(s, c, l->epi, l->n_epi, tile, 0, p, ev.t, tr);
            if (tr && tr->cta_end) tr->cta_end[tile] = done;
            if (done > end) end = done;
            int take = l->static_stride ? tile + l->static_stride : next;
            int stay = (tile + 1) % l->group != 0;
            if (stay) take = tile + 1;
            if (take >= l->tiles) {
                heap[0] = heap[--live];
                if (live > 0) sift_down(heap, live);
                continue;
            }
            if (!stay) {
                if (!l->static_stride) next += l->group;
                else if (take >= next) next = take + 1;
            }
            a->tile = take;
            a->step = -1;
            again = done + l->start_ps;
        }
        heap[0].t = again;
        sift_down(heap, live);
    }
    free(ctas); free(heap); free(sm_free);
    if (progress) *progress = l->tiles;
    return end;
}

/* Touches an object before the launch; `dirty` leaves its lines written. */
void iosim_place(L2State *s, const L2Config *c, int64_t object, int32_t dirty) {
    s->touched[object] = 1;
    for (int32_t x = s->first_sample[object]; x < s->first_sample[object + 1]; x++) {
        int home = c->partitions == 2 ? s->home_of[x] : 0;
        touch(s, c, home, x, dirty);
        if (c->partitions == 2 && c->keeps_written) touch(s, c, 1 - home, x, 0);
    }
}

void iosim_sizes(int32_t *out) {
    out[0] = (int32_t)sizeof(L2Config);
    out[1] = (int32_t)sizeof(L2State);
    out[2] = (int32_t)sizeof(LaunchPlan);
    out[3] = (int32_t)sizeof(Trace);
}
