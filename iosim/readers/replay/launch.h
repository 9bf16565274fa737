/* A launch as the replay plays it: its work tiles with what they access, its CTAs, and the events of CTAs by time. */
#ifndef IOSIM_LAUNCH_H
#define IOSIM_LAUNCH_H
#include "cache.h"

/* A CTA stands at `step` of work tile `tile`: that step's tiles have been asked for; -1: not begun. */
typedef struct {
    int32_t tile, step, sm;
    int32_t rank;          /* how many CTAs of its SM are older */
    int32_t previous;      /* the work tile before this one, or NIL */
    int64_t last_ps;       /* while rates are taken: when its last step was, or -1 */
    int64_t spent_ps;      /* and the time its steps took together */
    int64_t steps;
    int32_t left;          /* coarse: small steps of this step to come */
    int32_t claimed;       /* with `ahead`: the work tile that it has claimed, or NIL */
    int64_t each_ps;       /* and what each takes */
} Cta;

/* ---- an SM's CTAs share it: CTA i runs on SM i modulo their number ---- */

typedef struct {
    int64_t *step;    /* by SM: a step of a CTA that is alone */
    int32_t *live;    /* by SM: CTAs */
    int32_t *factor;  /* by (live, rank): step time over a lone CTA's, in units of 2^-FACTOR_BITS */
    int32_t most;     /* ranks that are told apart; 1 where all CTAs of an SM have the same share */
} Sms;

#define FACTOR_BITS 20

static inline int64_t step_time(const Sms *sms, const Cta *a) {
    return (sms->step[a->sm] * sms->factor[(int64_t)sms->live[a->sm] * sms->most + (sms->most > 1 ? a->rank : 0)]) >> FACTOR_BITS;
}

/* What the present step of a CTA takes: its step time, and what is by chance. */
static inline int64_t this_step(const LaunchPlan *l, const Sms *sms, const Cta *a) {
    int64_t mean = step_time(sms, a);
    int32_t turn = l->parts > 1 ? a->step / l->parts : a->step;
    return mean + spread((uint32_t)a->tile * 0x9e3779b1U + (uint32_t)turn, mean, l->step_spread_ppm);
}

/* When a CTA comes to its next step, where the present one takes `step` and the loads for the next are there at `there`:
 * they hold it up past the present one's end or, where nothing is asked for ahead, for as long as they take beyond hits. */
static inline int64_t next_step_at(const L2State *s, const L2Config *c, const LaunchPlan *l, int64_t t, int64_t step, int64_t there) {
    int64_t end = t + step;
    if (!l->waits) return there > end ? there : end;
    int64_t late = there - (s->l2_free > t ? s->l2_free : t) - c->l2_latency_ps * s->stands - c->far_latency_ps * s->stands;
    return late > 0 ? end + late : end;
}

/* The rate of the CTA of age `r` among n, in millionths of the mean of known rates: on the line through them. */
static int64_t rate_of(const LaunchPlan *l, int n, int r) {
    if (n < 2 || l->ranks < 2) return 1000000;
    /* n CTAs stand evenly on a line through the known `ranks`: age r of n is at r (ranks - 1) / (n - 1). */
    int at = r * (l->ranks - 1), low = at / (n - 1), rest = at % (n - 1);
    int64_t from = l->share_ppm[low], to = rest ? l->share_ppm[low + 1] : from;
    return from + (to - from) * rest / (n - 1);
}

/* A step of each of n equal CTAs on an SM over a lone one's, in units of 2^-FACTOR_BITS. */
static int64_t crowded(const LaunchPlan *l, int64_t n) {
    return n <= l->crowds ? (l->slow_ppm[n - 1] << FACTOR_BITS) / 1000000 : n << FACTOR_BITS;
}

/* Step times of the CTAs of an SM by their number and age: together they do what the SM can. */
static void fill_factors(Sms *sms, const LaunchPlan *l, int ctas) {
    if (l->ranks < 2) {
        for (int n = 1; n <= ctas; n++) sms->factor[n] = (int32_t)crowded(l, n);
        return;
    }
    for (int n = 1; n <= sms->most; n++) {
        /* rates are scaled so that their sum is n: the SM does the same work however it is shared. */
        int64_t sum = 0;
        for (int r = 0; r < n; r++) sum += rate_of(l, n, r);
        for (int r = 0; r < n; r++)
            sms->factor[n * sms->most + r] = (int32_t)(crowded(l, n) * (sum / n) / rate_of(l, n, r));
    }
}

/* A CTA leaves its place in the order of age; the younger ones move up. */
static void leave_rank(const LaunchPlan *l, Cta *ctas, int slots, int id) {
    int rank = ctas[id].rank;
    ctas[id].rank = NIL;
    if (l->ranks < 2) return; /* all alike, and thousands of them on an SM in elementwise passes */
    for (int i = ctas[id].sm; i < slots; i += l->sms)
        if (ctas[i].rank > rank) ctas[i].rank--;
}

static inline int loop_index(const LaunchPlan *l, int tile, int step) {
    int n = l->count[tile];
    int k = l->down[tile] ? n - 1 - step : step;
    return l->list ? l->list[l->first[tile] + k] : l->first[tile] + k;
}

/* The first work tile of a queue, which is one shorter then, or NIL. */
static inline int claim(const LaunchPlan *l, int *next) {
    int take = *next;
    if (take >= l->tiles) return NIL;
    *next += l->group * l->queues;
    return take;
}

/* The work tile that a CTA takes after its present one, or NIL; `heads` are those of the queues. */
static inline int tile_after(const LaunchPlan *l, Cta *a, int *heads) {
    int *next = heads + (l->queues > 1 ? l->side[a->sm] : 0);
    /* In the middle of a group the CTA goes on with the group's next tile; at its end it takes what
     * comes a stride on (static list), what it claimed before (ahead), or the head of the queue. */
    if ((a->tile + 1) % l->group != 0) return a->tile + 1;
    if (l->static_stride) {
        int take = a->tile + l->static_stride;
        if (take >= l->tiles) return NIL;
        if (take >= *next) *next = take + 1;
        return take;
    }
    if (!l->ahead) return claim(l, next);
    int take = a->claimed;
    a->claimed = claim(l, next);
    return take;
}

/* Whether a work tile makes the access at a loop index. */
static inline int is_made(const Template *x, int tile, int idx) {
    return x->base[tile] != NIL && !(x->skips && x->skips[idx] == x->block[tile]);
}

/* The first object that a work tile accesses at a loop index. */
static inline int64_t first_object(const Template *x, int tile, int idx) {
    int64_t turn = x->turn ? idx / x->turn : 0;
    return x->base[tile] + turn * x->turn_coef + (idx - turn * x->turn) * x->coef;
}

static WHOLE int64_t run_list(L2State *s, const L2Config *c, const Template *list, int n, int tile, int idx, int p,
                              int64_t t, Trace *tr, const int levels) {
    int64_t at = t;
    for (const Template *x = list; x < list + n; x++) {
        if (!is_made(x, tile, idx)) continue;
        const int mode = x->mode;
        int64_t o = first_object(x, tile, idx);
        int col = 0;
        /* A rectangle of objects, row by row. Only loads are waited for: stores go their way. */
        for (int64_t left = (int64_t)x->rows * x->span; left > 0;) {
            if (mode == LOAD) {
                int64_t there = access_object(s, c, LOAD, o, p, t, tr, levels);
                if (there > at) at = there;
            } else {
                int64_t there = access_object(s, c, mode, o, p, t, tr, levels);
                if (mode == LAST_LOAD && there > at) at = there;
            }
            if (--left == 0) break;
            o++;
            if (++col == x->span) col = 0, o += x->row_stride - x->span;
        }
    }
    return at;
}

/* The same where there is more than one L2, or a trace. */
static APART int64_t run_list_apart(L2State *s, const L2Config *c, const Template *list, int n, int tile, int idx, int p,
                                    int64_t t, Trace *tr) {
    return tr ? run_list(s, c, list, n, tile, idx, p, t, tr, 1) : run_list(s, c, list, n, tile, idx, p, t, NULL, 1);
}

/* What a work tile accesses at a loop index, by a list of templates; returns when its loads have arrived. */
static APART int64_t run_templates(L2State *s, const L2Config *c, const Template *list, int n, int tile, int idx, int p,
                             int64_t t, Trace *tr) {
    if (tr || has_levels(c)) return run_list_apart(s, c, list, n, tile, idx, p, t, tr);
    return run_list(s, c, list, n, tile, idx, p, t, NULL, 0);
}

/* ---- events: a heap by time, then by CTA ---- */

typedef struct { int64_t t; int32_t cta; int32_t pad; } Event;

static inline int before(const Event *a, const Event *b) {
    return a->t < b->t || (a->t == b->t && a->cta < b->cta);
}

#define FAN 4 /* children of a heap's node */

static void sift_up(Event *h, int i) {
    Event x = h[i];
    while (i > 0) {
        int up = (i - 1) / FAN;
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
        /* The earliest of up to FAN children; four of them lie in one line of the CPU's cache. */
        int first = FAN * i + 1, k = first, end = first + FAN < n ? first + FAN : n;
        if (first >= n) break;
        for (int m = first + 1; m < end; m++) k = before(&h[m], &h[k]) ? m : k;
        if (!before(&h[k], &x)) break;
        h[i] = h[k];
        i = k;
    }
    h[i] = x;
}

/* Takes the first event out; returns how many are left. */
static inline int drop_first(Event *h, int n) {
    h[0] = h[--n];
    if (n > 0) sift_down(h, n);
    return n;
}

/* ---- the same for all of n CTAs: a tournament ---- */

/* Node i holds the lesser of nodes 2i and 2i + 1, and node n + c the time of CTA c since `from`, shifted by `bits`, plus c.
 * Which way a time goes is no branch, as in a heap, where half of them are foreseen wrong. */
typedef struct {
    int64_t *node, from;
    int n, bits;
} Tournament;

#define NEVER INT64_MAX

static void play_all(Tournament *r) {
    for (int i = r->n - 1; i >= 1; i--) r->node[i] = r->node[2 * i] < r->node[2 * i + 1] ? r->node[2 * i] : r->node[2 * i + 1];
}

/* Room for n CTAs, which all come at `start`; 0 where there is no memory. */
static int make_tournament(Tournament *r, int n, int64_t start) {
    *r = (Tournament){.node = malloc(sizeof(int64_t) * 2 * (size_t)n), .from = start, .n = n};
    if (!r->node) return 0;
    while (1 << r->bits < n) r->bits++;
    for (int i = 0; i < n; i++) r->node[n + i] = i;
    play_all(r);
    return 1;
}

/* Who comes first, of equals the lowest. */
static inline Event first_of(const Tournament *r) {
    return (Event){r->from + (r->node[1] >> r->bits), (int32_t)(r->node[1] & ((1 << r->bits) - 1)), 0};
}

static inline void put_node(Tournament *r, int32_t cta, int64_t mine) {
    uint32_t i = (uint32_t)(r->n + cta);
    for (r->node[i] = mine; i > 1; r->node[i] = mine) {
        int64_t other = r->node[i ^ 1];
        mine = other < mine ? other : mine;
        i >>= 1;
    }
}

/* Counts times from the first to come on. */
static void count_anew(Tournament *r) {
    /* The earliest time becomes 0: a node has 63 bits for a time and the CTA's number together. */
    int64_t passed = r->node[1] >> r->bits;
    for (int i = r->n; i < 2 * r->n; i++)
        if (r->node[i] != NEVER) r->node[i] -= passed << r->bits;
    play_all(r);
    r->from += passed;
}

/* The first, CTA `cta`, comes again at `t`; where that is further off than a node can tell, as late as it can. */
static inline void comes_again(Tournament *r, int32_t cta, int64_t t) {
    const int64_t most = (NEVER >> r->bits) - 1;
    if (t - r->from > most) count_anew(r);
    int64_t since = t - r->from < most ? t - r->from : most;
    put_node(r, cta, (since << r->bits) + cta);
}

static inline void comes_no_more(Tournament *r, int32_t cta) { put_node(r, cta, NEVER); }

/* ---- a launch while it is played ---- */

typedef struct {
    L2State *l2;
    const L2Config *config;
    const LaunchPlan *plan;
    Cta *ctas;
    int slots;
    Event *running; /* when each live CTA comes to its next step, where windows are played: a heap, whose order they know */
    Tournament tournament; /* and where all is played */
    int live;
    int next[MAX_PARTITIONS]; /* the heads of the queues of work tiles */
    Sms sms;
} Play;

#endif
